"""Another device where there is none: tensors that say they live elsewhere, hold their numbers here, and refuse to be
mixed with tensors that do not. A method that runs on them would run on a GPU as far as places go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.errors import ConformanceError

ELSEWHERE = torch.device("meta:1")
"""The device that such tensors name: PyTorch can differentiate there, and nothing computes on it. Tensors without
values, such as symbols are made of, live on `meta`."""
_ATEN = torch.ops.aten
_COPIES = (_ATEN._to_copy.default, _ATEN.copy_.default)
_INDEXED = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default)
"""Positions may lie on the CPU, wherever it is that they point."""


class PlacedTensor(Tensor):
    """A tensor that says that it lives elsewhere."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> PlacedTensor:
        """Such a tensor with the numbers of another."""
        made: PlacedTensor = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=ELSEWHERE,
        )
        made.here = here.detach()
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PlacedTensor({self.here})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute here what is asked for elsewhere."""
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = list(_tensors_of((args, tuple(kwargs.values()))))
    if func in _INDEXED:
        tensors = [tensors[0]]
    placed = [part for part in tensors if isinstance(part, PlacedTensor)]
    others = [part for part in tensors if not isinstance(part, PlacedTensor) and part.ndim]
    if placed and others and func not in _COPIES:
        shapes = [tuple(part.shape) for part in others]
        raise ConformanceError(f"{func} mixes tensors of the run's device with tensors of the CPU, of shape {shapes}")
    there = is_elsewhere(kwargs["device"]) if kwargs.get("device") is not None else bool(placed)
    if kwargs.get("device") is not None and (there or placed):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*_change(args, _here), **{name: _change(part, _here) for name, part in kwargs.items()})
    if torch.Tag.inplace_view in func.tags:
        _change_shape(func, args, kwargs)
        return args[0]
    if func._schema.name.endswith("_"):
        return args[0]
    return _change(result, PlacedTensor) if there else result


def is_elsewhere(device: Any) -> bool:
    """Whether a device is the one that is not there."""
    return torch.device(device) == ELSEWHERE


def _here(tensor: Tensor) -> Tensor:
    return tensor.here if isinstance(tensor, PlacedTensor) else tensor


def _tensors_of(part: Any) -> Iterator[Tensor]:
    """The tensors among arguments, in lists and tuples too; written out, since this is asked of every operation."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _tensors_of(each)


def _change(part: Any, change: Callable[[Tensor], Any]) -> Any:
    """Arguments or results with every tensor changed."""
    if isinstance(part, Tensor):
        return change(part)
    return type(part)(_change(each, change) for each in part) if isinstance(part, list | tuple) else part


def _change_shape(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Give a placed tensor the shape that its numbers have now."""
    before = torch._C._meta_in_tls_dispatch_include()
    with torch.utils._mode_utils.no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Also makes new tensors elsewhere."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Does what never becomes an operation: new tensors of plain numbers, lists of tensors, and positions in lists."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and is_elsewhere(device):
            del kwargs["device"]
            return func(*args, **kwargs).to(ELSEWHERE)
        if func is Tensor.tolist:
            return _here(args[0]).tolist()
        if func is Tensor.__getitem__ and isinstance(args[0], PlacedTensor) and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]))
        return func(*args, **kwargs)


@contextmanager
def elsewhere() -> Iterator[str]:
    """Let tensors live on a device that is not there: its name.

    >>> with elsewhere() as device:
    ...     print(torch.ones(2, device=device) + torch.ones(2).to(device))
    ...     torch.ones(2, device=device) + torch.ones(2)
    Traceback (most recent call last):
    idiolect.core.errors.ConformanceError: aten.add.Tensor mixes tensors of the run's device with tensors of the CPU...
    """
    with _Functions(), _Operations():  # type: ignore[no-untyped-call]
        yield str(ELSEWHERE)
