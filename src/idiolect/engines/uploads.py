"""What is looked at in one upload before the server uses it, wherever the upload lies: it must be declared, of the
right shape and finite. What is looked at in all uploads of a round together, `runs.screening` knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract import Upload
from ..core import codec
from ..core.tree import Tree
from .plan import Plan
from .slots import sent_names

Norms = Mapping[str, float]
"""The length of each slot of an upload."""

UNREADABLE, NOT_DECLARED, MISSHAPEN = "not readable", "not declared by the method", "of another shape"
NOT_FINITE, OUTSIZED, SPOILING = "not finite", "out of all proportion", "too large to be averaged"


class Refusal(NamedTuple):
    """What is wrong with an upload: the kind, which is counted, and the reason, which is logged."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What is known of an upload: the length of each slot, its bytes, and why it is refused, if it is."""

    norms: Norms
    bytes: int
    refusal: Refusal | None = None


def inspect(plan: Plan, upload: Upload, known: Tree) -> Report:
    """What is known of an upload; `known` is the server's model, or one of the same shape."""
    norms = measure_norms(upload)
    refusal = find_refusal(upload, norms, sent_names(plan.method), known)
    return Report(norms, codec.size(upload.slots, upload.masks), refusal)


def find_refusal(upload: Upload, norms: Norms, declared: tuple[str, ...], known: Tree) -> Refusal | None:
    """Why an upload with these `norms` cannot be used; None if it can. `known` is the server's model. What has a finite
    norm is finite."""
    if extra := upload.slots.keys() - set(declared):
        return Refusal(NOT_DECLARED, f"it sent {', '.join(sorted(extra))}, which the method does not declare")
    for slot, leaves in upload.slots.items():
        for name, leaf in leaves.items():
            if slot == "params" and name in known and leaf.shape != known[name].shape:
                return Refusal(MISSHAPEN, f"{slot} {name} of shape {tuple(leaf.shape)} does not fit the server's model")
            if not math.isfinite(norms[slot]) and leaf.is_floating_point() and not is_finite(leaf):
                return Refusal(NOT_FINITE, f"{slot} {name} is not finite")
    return None


def measure_norms(upload: Upload) -> dict[str, float]:
    """The length of each slot of an upload."""
    return {slot: norm(leaves) for slot, leaves in upload.slots.items()}


def norm(leaves: Tree) -> float:
    """The length of all floating-point numbers of a slot together; infinite where it is beyond float32."""
    numbers = [leaf.float() if leaf.itemsize < 4 else leaf for leaf in leaves.values() if leaf.is_floating_point()]
    return math.hypot(*(float(torch.linalg.vector_norm(leaf)) for leaf in numbers)) if numbers else 0.0


def is_finite(leaf: Tensor) -> bool:
    """Whether all numbers are finite. A finite sum proves it in one pass; one that is not may be just too large."""
    return math.isfinite(float(leaf.sum())) or bool(torch.isfinite(leaf).all())
