"""Which published files can be fetched, from where, and the checksums that their publishers give: see remotes.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Remote:
    """A published file: where it is, what it is called here, its checksum, and what an archive gives when unpacked."""

    url: str
    file: str
    checksum: str | None = None
    gives: str | None = None


def _read() -> dict[str, tuple[Remote, ...]]:
    listed = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {name: tuple(Remote(**file) for file in files) for name, files in listed.items()}


REMOTES = _read()
