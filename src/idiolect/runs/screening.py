"""What of a round's uploads the server uses: an upload must be declared, finite and in proportion, and what is made of
all of them must be finite too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract import ServerContext, Upload, Uploads
from ..core.tree import Slots, Tree
from ..engines.slots import aggregate

LARGEST_RATIO = 1e6
"""A slot of an upload may be so many times as long as that of the median upload, or as the server's."""
LARGEST_MODEL_RATIO = 1e2
"""The same for a model among at least `MAJORITY` models: one that is much longer moves the mean so far that the honest
clients' training fails from there. Other slots may hold counts, which differ as much as clients do."""
MAJORITY = 3
Norms = Mapping[str, float]
"""The length of each slot of an upload."""

UNREADABLE, NOT_DECLARED, MISSHAPEN = "not readable", "not declared by the method", "of another shape"
NOT_FINITE, OUTSIZED, SPOILING = "not finite", "out of all proportion", "too large to be averaged"


class Refusal(NamedTuple):
    """What is wrong with an upload: the kind, which is counted, and the reason, which is logged."""

    kind: str
    reason: str


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


def find_outsized(norms: Mapping[int, Norms], server: Slots) -> dict[int, Refusal]:
    """The uploads that are out of all proportion, and what is so long in them: finite numbers such as 3e38, which no
    training gives but one client could spoil the model with. Of an even number, the median is the lower of the two in
    the middle, so that one of two clients cannot raise it; one that is alone is compared with the server's slot."""
    outsized: dict[int, Refusal] = {}
    for slot in sorted({slot for sent in norms.values() for slot in sent}):
        lengths = sorted(sent[slot] for sent in norms.values() if slot in sent)
        usual = lengths[(len(lengths) - 1) // 2] if len(lengths) > 1 else 0.0
        ratio = LARGEST_MODEL_RATIO if slot == "params" and len(lengths) >= MAJORITY else LARGEST_RATIO
        limit = ratio * max(1.0, usual, norm(server.get(slot, {})))
        for index, sent in norms.items():
            if sent.get(slot, 0.0) > limit:
                reason = f"{slot} has a norm of {sent[slot]:.3g}, and at most {limit:.3g} is usual in this round"
                outsized[index] = Refusal(OUTSIZED, reason)
    return outsized


def aggregate_finite(ctx: ServerContext, server: Slots, uploads: Uploads) -> tuple[Slots, dict[int, Refusal]]:
    """The server's slots after a round, and the uploads that had to be left out, the longest first, because what was
    made of them was not finite."""
    left, spoiling = dict(uploads), dict[int, Refusal]()
    while left:
        after = copy_lent(aggregate(ctx, server, left), left)
        if (spoilt := find_spoilt(server, after)) is None:
            return after, spoiling
        longest = max(left, key=lambda index: max(measure_norms(left[index]).values()))
        spoiling[longest] = Refusal(SPOILING, f"with it, the server's {spoilt} would not be finite")
        del left[longest]
    return server, spoiling


def find_spoilt(server: Slots, after: Slots) -> str | None:
    """A leaf that an aggregation made not finite; None where there is none."""
    for slot, leaves in after.items():
        before = server.get(slot, {})
        for name, leaf in leaves.items():
            if leaf is before.get(name) or not leaf.is_floating_point() or is_finite(leaf):
                continue
            if name not in before or is_finite(before[name]):
                return f"{slot} {name}"
    return None


def norm(leaves: Tree) -> float:
    """The length of all floating-point numbers of a slot together; infinite where it is beyond float32."""
    numbers = [leaf.float() if leaf.itemsize < 4 else leaf for leaf in leaves.values() if leaf.is_floating_point()]
    return math.hypot(*(float(torch.linalg.vector_norm(leaf)) for leaf in numbers)) if numbers else 0.0


def is_finite(leaf: Tensor) -> bool:
    """Whether all numbers are finite. A finite sum proves it in one pass; one that is not may be just too large."""
    return math.isfinite(float(leaf.sum())) or bool(torch.isfinite(leaf).all())


def copy_lent(server: Slots, uploads: Uploads) -> Slots:
    """The server's slots with a copy of whatever lies in an upload, whose memory the engine may use again."""
    lent = {
        leaf.untyped_storage().data_ptr()
        for upload in uploads.values()
        for slots in (upload.slots, upload.masks)
        for leaves in slots.values()
        for leaf in leaves.values()
    }

    def copy_leaves(leaves: Tree) -> Tree:
        copies = {name: leaf.clone() for name, leaf in leaves.items() if leaf.untyped_storage().data_ptr() in lent}
        return {**leaves, **copies} if copies else leaves

    return {slot: copy_leaves(leaves) for slot, leaves in server.items()}
