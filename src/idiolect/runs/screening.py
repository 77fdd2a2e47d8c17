"""What of a round's uploads the server uses: an upload must be declared, finite and in proportion, and what is made of
all of them must be finite too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..contract import Uploads
from ..core.tree import Slots, Tree
from ..engines.uploads import OUTSIZED, SPOILING, Norms, Refusal, is_finite, norm

LARGEST_RATIO = 1e6
"""A slot of an upload may be so many times as long as that of the median upload, or as the server's."""
LARGEST_MODEL_RATIO = 1e2
"""The same for a model among at least `MAJORITY` models: one that is much longer moves the mean so far that the honest
clients' training fails from there. Other slots may hold counts, which differ as much as clients do."""
MAJORITY = 3


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


def aggregate_finite(
    server: Slots, norms: Mapping[int, Norms], aggregate: Callable[[Sequence[int]], Slots]
) -> tuple[Slots, dict[int, Refusal]]:
    """The server's slots after a round, which `aggregate` makes of the uploads of some clients, and the uploads that
    had to be left out, the longest first, because what was made of them was not finite."""
    left, spoiling = list(norms), dict[int, Refusal]()
    while left:
        after = aggregate(left)
        if (spoilt := find_spoilt(server, after)) is None:
            return after, spoiling
        longest = max(left, key=lambda index: max(norms[index].values()))
        spoiling[longest] = Refusal(SPOILING, f"with it, the server's {spoilt} would not be finite")
        left.remove(longest)
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
