"""Partitions: which samples of a pool each client holds. Here live the contract, the registry and the
assignment as a value that can be hashed, saved and loaded; the partitions themselves are in `schemes`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...core.adopted import Adopted
from ...core.errors import DataError
from ...core.expressions import write
from ...core.options import Options
from ...core.randomness import generator
from ...core.registry import Registry
from ..splits import Indices, check_seed
from .shift import Shift

if TYPE_CHECKING:
    from ..federation import Federation


Labels = np.ndarray | None
"""The class of each sample; None where the targets are not classes."""
Groups = np.ndarray | None
"""The natural client of each sample, if there are any."""


@dataclass(frozen=True)
class Partition(Options):
    """A rule that deals the samples of a pool to clients."""

    name: ClassVar[str] = "partition"
    summary: ClassVar[str] = ""

    def __str__(self) -> str:
        """The canonical expression: the first option always, the others where they are not the default."""
        parts = [
            f"{info.name}={write(getattr(self, info.name))}"
            for place, info in enumerate(fields(self))
            if place == 0 or getattr(self, info.name) != info.default
        ]
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    def how_many(self, groups: Groups) -> int | None:
        """The number of clients where the data say it, else None."""
        return None

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """One sorted array of sample numbers per client; no sample goes to two clients."""
        raise NotImplementedError

    def shifts(self, clients: int) -> list[Shift | None]:
        """The transformation of each client's inputs."""
        return [None] * clients


@dataclass(frozen=True)
class OwnPartition(Adopted, Partition):
    """A user's function that deals samples: of its parameters `labels`, `samples`, `clients`, `rng` and `groups` are
    given to it, the others are options; it returns one list of sample numbers per client."""

    given = ("labels", "samples", "clients", "rng", "groups")
    error = DataError

    def assign(self, labels: Labels, n: int, clients: int, rng: np.random.Generator, groups: Groups) -> list[Indices]:
        """What the function returns."""
        dealt = self.call(labels=labels, samples=n, clients=clients, rng=rng, groups=groups)
        try:
            return [np.asarray(numbers, dtype=np.int64).reshape(-1) for numbers in dealt]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.name} gives a {type(dealt).__name__} that cannot be used ({error}); it must give one list of"
                " sample numbers per client"
            ) from error


partitions: Registry[Partition] = Registry("partition", Partition, group="idiolect.partitions", adopted=OwnPartition)


@dataclass(frozen=True, eq=False)
class Assignment:
    """Which samples of a pool each client holds, and how that was decided."""

    partition: Partition
    seed: int
    samples: int
    indices: tuple[Indices, ...]

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name the content, however it came about."""
        return content_hash(self.indices)


def content_hash(indices: Sequence[Indices]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 over the clients' sample numbers.

    >>> content_hash([np.array([0, 2]), np.array([1])])
    '5898622a490e'
    """
    digest = hashlib.sha256()
    for numbers in indices:
        digest.update(len(numbers).to_bytes(8, "little") + np.asarray(numbers, dtype="<i8").tobytes())
    return digest.hexdigest()[:12]


def divide(
    partition: str | Partition,
    labels: Labels,
    *,
    samples: int | None = None,
    clients: int | None = None,
    seed: int = 0,
    groups: Groups = None,
) -> Assignment:
    """Deal samples to clients; the partition, its options and the seed determine the result.

    >>> assignment = divide("shards:1", np.array([1, 0, 1, 0]), clients=2)
    >>> sorted(index.tolist() for index in assignment.indices)
    [[0, 2], [1, 3]]
    """
    rule = partitions.build(partition)
    n = _number(labels, groups, samples)
    clients = rule.how_many(groups) if clients is None else clients
    if clients is None:
        raise DataError(f"the partition {rule} needs the number of clients; give it, such as clients=20")
    if not 1 <= clients <= n:
        raise DataError(f"{n} samples cannot be dealt to {clients} clients; use 1 to {n} clients")
    dealt = rule.assign(labels, n, clients, generator(check_seed(seed), "partition"), groups)
    indices = tuple(np.sort(np.asarray(numbers, dtype=np.int64)) for numbers in dealt)
    if len(indices) != clients:
        raise DataError(f"the partition {rule} gives samples to {len(indices)} clients, but there are to be {clients}")
    _check_dealt(rule, indices, n)
    return Assignment(rule, seed, n, indices)


def _number(labels: Labels, groups: Groups, samples: int | None) -> int:
    """How many samples there are, which all that is given must agree on."""
    known = {len(part) for part in (labels, groups) if part is not None} | ({samples} if samples is not None else set())
    if len(known) != 1:
        raise DataError(
            f"labels, groups and the number of samples disagree ({sorted(known)}); give one label and group per sample"
        )
    return known.pop()


def _check_dealt(rule: Partition, indices: tuple[Indices, ...], n: int) -> None:
    for position, index in enumerate(indices):
        if not len(index):
            raise DataError(
                f"the partition {rule} leaves client {position} of {len(indices)} without samples ({n} in all);"
                " use fewer clients or other options"
            )
    together = np.concatenate(indices)
    if len(np.unique(together)) != len(together) or together.min() < 0 or together.max() >= n:
        raise DataError(f"the partition {rule} gives a sample to two clients, or one that is not among the {n} samples")


def save_partition(path: str | Path, assignment: Assignment | Federation) -> None:
    """Write who holds which samples as JSON; the partition `file(path)` reads it.

    >>> save_partition(getfixture("tmp_path") / "p.json", divide("iid", np.zeros(6), clients=2))
    """
    dealt = assignment if isinstance(assignment, Assignment) else assignment.assignment()
    content = {
        "name": dealt.partition.name,
        "parameters": asdict(dealt.partition),
        "partition": str(dealt.partition),
        "seed": dealt.seed,
        "samples": dealt.samples,
        "hash": dealt.hash,
        "indices": [index.tolist() for index in dealt.indices],
    }
    Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")


def load_partition(path: str | Path) -> Assignment:
    """Read what `save_partition` wrote, and check that it is whole.

    >>> path = getfixture("tmp_path") / "p.json"
    >>> save_partition(path, divide("iid", np.zeros(6), clients=2))
    >>> load_partition(path).samples
    6
    """
    try:
        content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        indices = tuple(np.array(index, dtype=np.int64) for index in content["indices"])
        assignment = Assignment(partitions.build(content["partition"]), content["seed"], content["samples"], indices)
        expected = content["hash"]
    except FileNotFoundError as error:
        raise DataError(f"there is no partition file {str(path)!r}; write one with save_partition") from error
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise DataError(f"{str(path)!r} is no partition file, or damaged ({error}); write it anew") from error
    if assignment.hash != expected:
        raise DataError(
            f"the partition file {str(path)!r} is damaged: its content has the hash {assignment.hash}, not {expected};"
            " write it anew"
        )
    return assignment
