"""Shakespeare by role: LEAF's JSON files, or plays whose speakers are marked. The next character is to be predicted."""

from __future__ import annotations

import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError
from ...core.options import option
from ...core.randomness import generator
from ..formats.files import BROKEN, Layout, read_text, unreadable
from ..naming import Naming
from .base import FileSource, Pool, choose, sources
from .femnist import leaf_files, read_leaf

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, numbered from 0; what is not among them becomes a space."""
_PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": "-", "–": "-", "…": ".", "æ": "ae", "Æ": "Ae"})
_NUMBER = np.full(128, ALPHABET.index(" "), np.int64)
_NUMBER[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))

Speeches = dict[str, list[str]]


def letters(text: str) -> np.ndarray:
    """A text as numbers of LEAF's characters; typographic marks and accents become plain ones first.

    >>> [ALPHABET[at] for at in letters("’tis é")]
    ["'", 't', 'i', 's', ' ', 'e']
    """
    plain = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    raw = "".join(letter for letter in plain if not unicodedata.combining(letter)).encode("ascii", "replace")
    return _NUMBER[np.frombuffer(raw.replace(b"\x00", b" "), np.uint8)]


def _roles_jsonl(path: Path) -> Speeches:
    """One JSON per line: client, and its lines."""
    roles: Speeches = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            record = json.loads(line)
            roles[str(record["client"])] = [str(speech) for speech in record["lines"]]
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(path, f"line {number}: {type(error).__name__} {error}") from error
    return roles


def _roles_xml(path: Path) -> Speeches:
    """A zip of plays in XML with SPEECH, SPEAKER and LINE; speeches of several speakers are left out."""
    roles: Speeches = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(member for member in archive.namelist() if member.endswith(".xml")):
                for speech in ElementTree.fromstring(archive.read(name)).iter("SPEECH"):
                    speakers = [speaker.text or "" for speaker in speech.iter("SPEAKER")]
                    text = "\n".join("".join(line.itertext()) for line in speech.iter("LINE"))
                    if len(speakers) == 1:
                        roles.setdefault(f"{Path(name).stem}/{speakers[0]}", []).append(text)
    except (zipfile.BadZipFile, ElementTree.ParseError, LookupError, RuntimeError, *BROKEN) as error:
        raise unreadable(path, error) from error
    return roles


def _roles_text(path: Path) -> Speeches:
    """Speeches between empty lines, each beginning with "Role:"."""
    roles: Speeches = {}
    for speech in re.split(r"\n\s*\n", read_text(path)):
        head, colon, text = speech.strip().partition(":\n")
        if colon and "\n" not in head:
            roles.setdefault(head, []).append(text)
    return roles


_READERS: dict[str, Callable[[Path], Speeches]] = {"dracor": _roles_jsonl, "nltk": _roles_xml, "tiny": _roles_text}


@sources.register("shakespeare")
@dataclass(frozen=True)
class Shakespeare(FileSource):
    """The characters of Shakespeare's plays as clients. A sample is a window of characters and the one that follows (as
    in LEAF), or, with `every`, the window moved on by one: a target per position. Roles with fewer than `min_samples`
    samples are left out. With `stride=1` and all roles, windows take 2.7 GB."""

    title: ClassVar[str] = "Shakespeare's plays, next character"
    licence: ClassVar[str] = "public domain (text); DraCor's edition CC BY-NC 3.0"
    size: ClassVar[str] = "4.2 million characters, 80 tokens in, 80 classes"
    groups: ClassVar[str] = "1,410 roles (DraCor), 1,129 (LEAF)"
    papers: ClassVar[str] = "FedFac"
    layouts: ClassVar[dict[str, Layout]] = {
        "leaf": Layout("shakespeare", ("leaf/",), "a folder of LEAF's JSON files"),
        "dracor": Layout("shakespeare", ("shakedracor_by_role.jsonl",)),
        "nltk": Layout("shakespeare", ("nltk_shakespeare.zip",)),
        "tiny": Layout("shakespeare", ("tinyshakespeare_input.txt",)),
    }

    roles: int | None = option(None, min=1, help="take a random choice of this many roles")
    per_role: int | None = option(None, min=1, help="take a random part of this many samples of each role")
    window: int = option(80, min=1, help="characters a prediction may look at")
    stride: int = option(1, min=1, help="characters between the starts of two windows")
    every: bool = option(False, help="a target at every position, not only after the window")
    min_samples: int = option(64, min=1, help="leave out roles with fewer samples")
    edition: str = option("any", choices=("any", "leaf", *_READERS), help="which files; any is the first that is there")

    def find(self, verify: bool = True) -> tuple[str, dict[str, Path]]:
        """The files of the wanted edition."""
        if self.edition == "any":
            return super().find(verify)
        layout = self.layouts[self.edition]
        if layout.missing(self.path):
            raise DataError(f"{self.name}: {', '.join(layout.files)} not found. To use it, {layout.where(self.path)}.")
        return self.edition, layout.paths(self.path)

    def load(self) -> Pool:
        """The pool of characters, with the roles as groups."""
        kind, paths = self.find()
        (path,) = paths.values()
        pairs = self._leaf(path) if kind == "leaf" else self._plays(_READERS[kind](path))
        roles = {role: pair for role, pair in pairs if len(pair[1]) >= self.min_samples}
        if self.roles is not None:
            if self.roles > len(roles):
                raise DataError(
                    f"shakespeare: roles={self.roles} is more than the {len(roles)} with at least {self.min_samples}"
                    " samples; ask for fewer"
                )
            names = sorted(roles)
            chosen = generator(self.seed, "subset").choice(len(names), self.roles, replace=False)
            roles = {names[at]: roles[names[at]] for at in sorted(chosen)}
        if not roles:
            raise DataError(f"shakespeare: no role in {path} has {self.min_samples} samples; lower min_samples")
        parts = [self._part(x, y) for x, y in roles.values()]
        x, y = (torch.cat([part[place] for part in parts]) for place in (0, 1))
        groups = np.repeat(np.array(list(roles)), [len(part[1]) for part in parts])
        index = self.choose_samples(len(y))
        size, naming = len(ALPHABET), Naming(words=tuple(ALPHABET))
        return Pool(x[index], y[index], groups[index], size, self.name, words=size, names=naming)

    def _part(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wanted = None if self.per_role is None else min(self.per_role, len(y))
        index = torch.from_numpy(choose("shakespeare", len(y), wanted, self.seed))
        return x[index], y[index]

    def _plays(self, roles: Speeches) -> Iterable[tuple[str, tuple[Tensor, Tensor]]]:
        for role, speeches in roles.items():
            text = torch.from_numpy(letters("\n".join(speeches)))
            if len(text) <= self.window:
                continue
            windows = text.unfold(0, self.window + 1, self.stride)
            yield role, (windows[:, :-1], windows[:, 1:] if self.every else windows[:, -1])

    def _leaf(self, folder: Path) -> Iterable[tuple[str, tuple[Tensor, Tensor]]]:
        if self.every:
            raise DataError("shakespeare: LEAF's files have one target per window; choose every=false")
        windows: dict[str, tuple[list[str], list[str]]] = {}
        for user, x, y in read_leaf(leaf_files(folder)):
            before = windows.setdefault(user, ([], []))
            before[0].extend(x)
            before[1].extend(y)
        for user, (texts, nexts) in windows.items():
            rows = [letters(text) for text in texts]
            if len({len(row) for row in rows}) > 1 or any(len(following) != 1 for following in nexts):
                raise DataError(f"shakespeare: the windows of {user!r} differ in length, or a target is no character")
            yield user, (torch.from_numpy(np.stack(rows)), torch.from_numpy(letters("".join(nexts))))
