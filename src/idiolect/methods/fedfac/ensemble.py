"""The paper's `Ensemble`, for new clients that cannot train: the personal models of the last participants, of which the
server keeps the split layers, as all else is shared."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...contract import Slots, Tree, tree
from ...contract.messages import Upload, Uploads

MEMBERS = "fedfac.members"


def stack_members(shared: Tree, server: Slots, each: Uploads) -> Tree:
    """The split layers of each participant's personal model, stacked: the server's shared rows over what it sent."""
    newest = {slot: tree.pick(server[slot], shared) for slot in ("params", "buffers")}
    whole = {**newest["params"], **newest["buffers"]}
    sent = [
        {n: leaf for slot, known in newest.items() for n, leaf in fill_in(upload, slot, known).items()}
        for upload in each.values()
    ]
    return tree.stack([{n: torch.where(shared[n], whole[n], leaf) for n, leaf in rows.items()} for rows in sent])


def member_models(model: Slots) -> Iterator[Slots]:
    """The network of each member: the model with the member's split layers."""
    for member in tree.unstack(model[MEMBERS]):
        yield {slot: {**model[slot], **tree.pick(member, model[slot])} for slot in ("params", "buffers")}


def fill_in(upload: Upload, slot: str, before: Tree) -> Tree:
    """What a client sent of a slot; what it, or a wrapper, held back counts as what the server holds."""
    sent, masks = upload.slots.get(slot, {}), upload.masks.get(slot, {})
    return {
        n: leaf if n not in sent else torch.where(masks[n], sent[n], leaf) if n in masks else sent[n]
        for n, leaf in before.items()
    }
