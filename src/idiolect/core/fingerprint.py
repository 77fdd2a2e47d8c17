"""Fingerprints of a user's code and objects: the same from one process to the next, and others after an edit."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .installed import is_installed

LENGTH = 12
LIBRARIES = frozenset({"idiolect", "torch", "numpy", *sys.stdlib_module_names})
"""Packages whose code is named, but not read."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Path, Enum, np.generic, torch.dtype, torch.device)


def fingerprint(thing: Any, tensors: bool = True) -> str:
    """Twelve hexadecimal digits that name what a function, class or object computes: its code, and its state.

    Of code in a file the whole file counts, and the user's files that it imports; of code that was typed into a script
    or notebook, the functions and values that it refers to. Comments and layout do not count. Of objects, attributes
    without a leading underscore count. Without `tensors`, only the names and shapes of a module's tensors do.

    >>> half, same, third = (functools.partial(torch.mul, other=share) for share in (1 / 2, 0.5, 1 / 3))
    >>> fingerprint(half) == fingerprint(same), fingerprint(half) == fingerprint(third)
    (True, False)
    """
    walk = _Walk(tensors)
    walk.visit(thing)
    return walk.digest.hexdigest()[:LENGTH]


class _Walk:
    """Adds to a digest what can be reached from an object."""

    def __init__(self, tensors: bool) -> None:
        self.digest, self.tensors = hashlib.sha256(), tensors
        self.open: set[int] = set()
        """Containers and objects that are being visited, which may lead back to themselves."""
        self.done: set[int] = set()
        """Functions, classes and modules, which are visited once."""

    def add(self, *words: Any) -> None:
        """Add some words."""
        self.digest.update(repr(words).encode())

    def visit(self, thing: Any) -> None:
        """Add an object and what it refers to."""
        if isinstance(thing, _PLAIN):
            self.add(type(thing).__name__, str(thing))
        elif isinstance(thing, FunctionType | type | ModuleType):
            if id(thing) not in self.done:
                self.done.add(id(thing))
                self.visit_code(thing)
        elif id(thing) not in self.open:
            self.open.add(id(thing))
            self.visit_state(thing)
            self.open.remove(id(thing))

    def visit_code(self, thing: FunctionType | type | ModuleType) -> None:
        """Add a function, a class or a module."""
        if isinstance(thing, ModuleType):
            self.add_files(thing)
        elif isinstance(thing, type):
            for cls in thing.__mro__[:-1]:
                self.add_class(cls)
        else:
            self.add_function(thing)

    def visit_state(self, thing: Any) -> None:
        """Add an object's class and its values."""
        self.add(type(thing).__qualname__)
        if isinstance(thing, Tensor | np.ndarray):
            self.add_tensor(thing)
        elif isinstance(thing, Mapping):
            self.visit_items({str(key): value for key, value in thing.items()})
        elif isinstance(thing, list | tuple):
            for value in thing:
                self.visit(value)
        elif isinstance(thing, set | frozenset):
            self.add(*sorted(map(repr, thing)))
        elif isinstance(thing, MethodType):
            self.visit([thing.__func__, thing.__self__])
        elif isinstance(thing, functools.partial):
            self.visit([thing.func, thing.args, thing.keywords])
        elif inspect.isroutine(thing):
            self.add(getattr(thing, "__module__", ""), getattr(thing, "__qualname__", ""))
        else:
            self.visit(type(thing))
            self.visit_items(_state(thing))

    def visit_items(self, items: Mapping[str, Any]) -> None:
        """Add values by name."""
        for name, value in items.items():
            self.add(name)
            self.visit(value)

    def add_tensor(self, tensor: Tensor | np.ndarray) -> None:
        """Add a tensor's shape, type and, if asked for, its numbers."""
        self.add(tuple(tensor.shape), str(tensor.dtype))
        if self.tensors:
            plain = torch.as_tensor(tensor).detach().cpu().contiguous().reshape(-1)
            self.digest.update(plain.view(torch.uint8).numpy().tobytes())

    def add_class(self, cls: type) -> None:
        """Add a class without its bases."""
        self.add(cls.__qualname__)
        if _is_library(cls.__module__):
            self.add(cls.__module__)
        elif _has_file(cls.__module__):
            self.visit(sys.modules[cls.__module__])
        else:
            self.add(source := _source_of(cls))
            for name, member in vars(cls).items():
                plain = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if isinstance(plain, FunctionType) and (not source or _source_of(plain)):
                    self.visit(plain)
                elif isinstance(plain, _PLAIN) and not name.startswith("__"):
                    self.visit_items({name: plain})

    def add_function(self, function: FunctionType) -> None:
        """Add a function with the values that it carries along."""
        self.add(function.__qualname__)
        self.visit([_content(cell) for cell in function.__closure__ or ()])
        self.visit([function.__defaults__, function.__kwdefaults__])
        module = function.__module__ or ""
        if _is_library(module):
            self.add(module)
            return
        if _has_file(module):
            self.visit(sys.modules[module])
        else:
            known = function.__globals__
            self.visit_items({name: known[name] for name in _names(function.__code__) if name in known})
        source = _source_of(function)
        self.add(source)
        if not source or function.__name__ == "<lambda>":  # of which a line may hold several
            self.add(*_bytecode(function.__code__))

    def add_files(self, module: ModuleType) -> None:
        """Add the text of a module and of the user's modules that it imports."""
        texts, waiting, seen = list[str](), [module], set[str]()
        while waiting:
            module = waiting.pop()
            if module.__name__ in seen or _is_library(module.__name__) or not _has_file(module.__name__):
                continue
            seen.add(module.__name__)
            texts.append(_plain_source(Path(str(module.__file__)).read_text(encoding="utf-8")))
            waiting += [other for other in _list_imports(module) if not is_installed(str(other.__file__))]
        self.add(*sorted(texts))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _has_file(module: str) -> bool:
    """Whether a module's text is in a file of its own; a script that is run is more than the code that it defines."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return module != "__main__" and path is not None and path.endswith(".py") and Path(path).is_file()


def _list_imports(module: ModuleType) -> Iterator[ModuleType]:
    """The modules with a file whose content a module refers to."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else inspect.getattr_static(value, "__module__", None)
        other = sys.modules.get(name) if isinstance(name, str) else None
        if other is not None and getattr(other, "__file__", None):
            yield other


def _state(thing: Any) -> dict[str, Any]:
    """The values that make an object what it is, by name."""
    if is_dataclass(thing):
        return {entry.name: getattr(thing, entry.name) for entry in fields(thing)}
    public = {name: value for name, value in getattr(thing, "__dict__", {}).items() if not name.startswith("_")}
    if isinstance(thing, nn.Module):
        public.pop("training", None)
        return {**public, **thing._parameters, **thing._buffers, **thing._modules}
    return {} if _is_library(type(thing).__module__) else public


def _source_of(thing: Any) -> str:
    """The text of a function or class without comments; empty where it cannot be had."""
    try:
        return _plain_source(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError):
        return ""


def _plain_source(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:  # a lambda in the middle of a call
        return text


def _names(code: CodeType) -> list[str]:
    """The names that code looks up, that of functions inside it too."""
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    return sorted({*code.co_names, *(name for part in inside for name in _names(part))})


def _bytecode(code: CodeType) -> list[Any]:
    """What a function does, where there is no text of it."""
    consts = [_bytecode(const) if isinstance(const, CodeType) else repr(const) for const in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, consts]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was never given a value
        return None
