"""How slots travel, from what a method declares of them: the first values, what a client works with, what it keeps and
sends, and what the server adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ..contract import ClientContext, Method, ServerContext, Slot, Upload, Uploads
from ..contract.slots import buffers_of, mask_of, private_of, slot_of
from ..core import tree
from ..core.sums import Sums
from ..core.tree import Slots, Tree


def parts_of(name: str, slot: Slot) -> tuple[str, ...]:
    """A slot and, if it holds a model, the one with its buffers."""
    return (name, buffers_of(name)) if slot.holds == "model" else (name,)


def first_value(ctx: ClientContext | ServerContext, name: str, slot: Slot) -> Slots:
    """The first value of a slot and, if it holds a model, of its buffers."""
    value: Slots = {name: slot.first(ctx)}
    return {**value, buffers_of(name): ctx.initial["buffers"]} if slot.holds == "model" else value


# -- server ------------------------------------------------------------------------------------------


def first_server(ctx: ServerContext) -> Slots:
    """The server's slots before the first round; those in a model's shape once per network."""
    server: Slots = {}
    for name, slot in ctx.method.slots.items():
        if slot.home != "server":
            continue
        for m, task in enumerate(ctx.tasks if slot.holds != "other" else ctx.tasks[:1]):
            first = first_value(replace(ctx, task=task), name, slot)
            server |= {slot_of(part, m): value for part, value in first.items()}
    return server


def aggregate(ctx: ServerContext, server: Slots, uploads: Uploads) -> Slots:
    """The server's slots after a round, by the method's `aggregate`."""
    method = ctx.method
    summands = {i: method.summand(ctx, server, upload) for i, upload in uploads.items()}
    single = [part for name, slot in method.slots.items() if slot.up == "each" for part in parts_of(name, slot)]
    each = {i: restrict(upload, (*single, "weight")) for i, upload in uploads.items()} if single else {}
    return method.aggregate(ctx, server, UploadSums(ctx, summands), each)


def restrict(upload: Upload, names: tuple[str, ...]) -> Upload:
    """An upload with some of its slots only."""
    return Upload(*({name: slots[name] for name in names if name in slots} for slots in (upload.slots, upload.masks)))


class UploadSums(Mapping[str, Sums]):
    """Sums over uploads by the server's slot names, each computed when it is first looked at; with those `before`, they
    are over other clients' as well, to which these are added one by one. Of leaves, only those are added up whose names
    are `wanted`."""

    def __init__(
        self,
        ctx: ServerContext,
        uploads: Uploads,
        before: Mapping[str, Sums] | None = None,
        wanted: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._ctx, self._uploads, self._before, self._wanted = ctx, uploads, before or {}, wanted
        self._known: dict[str, Sums] = {}
        self._senders: dict[str, tuple[str, Slot, list[int]]] = {}
        declared = {part: slot for name, slot in ctx.method.slots.items() for part in parts_of(name, slot)}
        for i, upload in uploads.items():
            for name in upload.slots:
                if name == "weight":
                    continue
                slot = declared.get(name, Slot("round", up="sum"))
                key = name if slot.holds == "other" else slot_of(name, ctx.network_of.get(i, 0))
                self._senders.setdefault(key, (name, slot, []))[2].append(i)

    def __getitem__(self, key: str) -> Sums:
        if key not in self._senders:
            return self._before[key]
        if key not in self._known:
            name, slot, senders = self._senders[key]
            uploads = {i: self._uploads[i] for i in senders}
            weights = self._weights(slot, uploads)
            sent = ((u.slots[name], p, u.masks.get(name)) for u, p in zip(uploads.values(), weights, strict=True))
            self._known[key] = Sums.of(sent, slot.missing, self._before.get(key), self._wanted)
        return self._known[key]

    def _weights(self, slot: Slot, uploads: Uploads) -> Sequence[float | Tensor]:
        by_run = slot.weigh == "run"
        if slot.weigh == "uniform" or (by_run and self._ctx.training.weighting == "uniform"):
            return [1.0] * len(uploads)
        if by_run:
            return [float(upload.weight) for upload in uploads.values()]
        where, leaf = slot.weigh.split("/")
        return [upload.slots[where][leaf] for upload in uploads.values()]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._before, **self._senders})

    def __len__(self) -> int:
        return len(self._before.keys() | self._senders.keys())


# -- client ------------------------------------------------------------------------------------------


def first_client(ctx: ClientContext) -> Slots:
    """A client's slots before it first trains: those that it keeps, and the private part of shared models."""
    state: Slots = {}
    for name, slot in ctx.method.slots.items():
        if slot.home == "client":
            state |= first_value(ctx, name, slot)
        elif slot.holds == "model" and ctx.private_names:
            first = first_value(ctx, name, slot)
            state[private_of(name)] = tree.pick({**first[name], **first[buffers_of(name)]}, ctx.private_names)
    return {name: value for name, value in state.items() if value or not name.endswith("private")}


def gather(ctx: ClientContext, state: Slots, download: Slots, training: bool = True) -> Slots:
    """What a client works with: what it keeps, what it got and, for training, what is made anew each round."""
    work = dict(download)
    for name, slot in ctx.method.slots.items():
        if slot.home == "client":
            work |= {part: state[part] for part in parts_of(name, slot) if part in state}
        elif slot.home == "round":
            work |= first_value(ctx, name, slot) if training else {}
        elif slot.holds == "model" and (slot.down or private_of(name) in state):
            private = state.get(private_of(name), {})
            for part, names in zip(parts_of(name, slot), (ctx.initial["params"], ctx.initial["buffers"]), strict=True):
                received = download.get(part, {})
                known = {**received, **private}
                work[part] = {n: known[n] for n in names if n in known}
    return work | kept_optimizer(ctx, state) if training else work


def kept_optimizer(ctx: ClientContext, slots: Slots) -> Slots:
    """The optimiser's state among some slots, if the run keeps it from round to round."""
    return {name: slots[name] for name in slots if ":" in name and ctx.training.optimizer_state == "keep"}


def finish(ctx: ClientContext, state: Slots, work: Slots) -> tuple[Slots, Upload, Slots]:
    """The client's slots after a round, what it sends, and the working slots after the method's `finish`."""
    finished = ctx.method.finish(ctx, work)
    after, upload = keep_and_send(ctx, state, finished)
    return after | kept_optimizer(ctx, work), upload, finished


def keep_and_send(ctx: ClientContext, state: Slots, work: Slots) -> tuple[Slots, Upload]:
    """The client's slots after a round, and what it sends, from the slots after `finish`."""
    after, sent, masks, weighed = dict(state), Slots(), Slots(), False
    private = ctx.private_names
    for name, slot in ctx.method.slots.items():
        if name not in work:
            continue
        parts = tuple(part for part in parts_of(name, slot) if part in work)
        if slot.home == "client":
            after |= {part: work[part] for part in parts}
        elif slot.home == "server" and slot.holds == "model" and private:
            updated = tree.pick({n: leaf for part in parts for n, leaf in work[part].items()}, private)
            after |= {private_of(name): {**state.get(private_of(name), {}), **updated}} if updated else {}
        if slot.up:
            part_sent = {part: _without(private, slot, work[part]) for part in parts}
            if slot.holds != "other" and not any(part_sent.values()):
                continue
            sent |= part_sent
            weighed = weighed or slot.weigh == "run"
            masks |= {part: work[mask_of(part)] for part in parts if mask_of(part) in work}
    return after, Upload({**sent, "weight": {"samples": ctx.samples}} if weighed else sent, masks)


def _without(private: frozenset[str], slot: Slot, leaves: Tree) -> Tree:
    return leaves if slot.holds == "other" else tree.drop(leaves, private)


def sent_names(method: Method) -> tuple[str, ...]:
    """The slots that may leave a client; nothing else does."""
    slots = {name: slot for name, slot in method.slots.items() if slot.up}
    names = [part for name, slot in slots.items() for part in parts_of(name, slot)]
    weighed = any(slot.weigh == "run" for slot in slots.values())
    return (*names, *(("weight",) if weighed else ()))
