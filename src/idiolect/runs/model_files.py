"""The weights of a model as a safetensors file that is there whole, with a checksum among its metadata. Any program
reads such a file; `read_model` also notices damage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core import codec
from ..core.checksums import checksum
from ..core.errors import RunFolderError
from ..core.files import write_whole

_CHECKSUM = "checksum"


def write_model(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write weights by name, with some words about them."""
    metadata = {**about, _CHECKSUM: str(_checksum(weights, about))}
    write_whole(path, lambda part: save_file(dict(weights), part, metadata=metadata))


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The weights by name and the words about them, or an error if they are not what was written. A file without a
    checksum, of another program, is taken as it is."""
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"the model {path} cannot be read: {error}") from error
    expected = about.pop(_CHECKSUM, None)
    if expected is not None and expected != str(_checksum(weights, about)):
        raise RunFolderError(f"the model {path} is damaged: it is not what was written; save or export it again")
    return weights, about


def _checksum(weights: Mapping[str, Tensor], about: Mapping[str, str]) -> int:
    ordered = {name: weights[name] for name in sorted(weights)}
    return checksum(codec.encode({"model": ordered}), sorted(about.items()))
