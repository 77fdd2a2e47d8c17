"""Hostile messages against the server of a deployment, in process: benchmarks/attack_messages.py --messages 10000

One of five clients changes its replies: when it joins, trains or is evaluated. A table says, by kind, how many replies
were refused, how many were accepted (what they say is possible), how many stopped the server, in how many runs its
model was not finite or not small afterwards, and how many replies of honest clients were refused.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from idiolect.core import codec
from idiolect.flower.loopback import LoopbackEngine, LoopbackTransport
from idiolect.flower.membership import Membership
from idiolect.flower.messages import Message, sign
from idiolect.flower.settings import Deployment
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.setup import weights_hash
from idiolect.runs.store import Store
from idiolect.testing import tiny_plan

BAD = 1
HARM = ("crashed", "spoilt", "harmed")
ODD = [
    None,
    True,
    -1,
    2**39,
    2**70,
    10**400,
    0.5,
    -1e300,
    float("nan"),
    float("inf"),
    "",
    "5",
    "\ud800",
    "x" * 9999,
    "[[",
]
Change = Callable[[Message, random.Random], Message]


def change_field(reply: Message, rng: random.Random) -> Message:
    """Another value in one field, or a field that is missing."""
    name, value = rng.choice([name for name in reply.fields if name != "proof"]), rng.choice(ODD)
    fields = {n: v for n, v in reply.fields.items() if n != name}
    return replace(reply, fields=fields if value is None else {**fields, name: value})


def change_scores(reply: Message, rng: random.Random) -> Message:
    """Scores that nobody asked for, of any type."""
    entry = [rng.choice(["personal", "after_local", "state", 5]), rng.choice(["val", "test", ""]),
             rng.choice(["accuracy", "loss", "diary"]), rng.choice([0.5, 77.0, 1e308, float("nan"), 1]),
             rng.choice([3, -1, 2**39, 1.5])]  # fmt: skip
    return replace(reply, fields={**reply.fields, "scores": json.dumps([entry] * rng.choice([1, 1000]))})


def change_bytes(reply: Message, rng: random.Random) -> Message:
    """Some bytes of the upload."""
    data = bytearray(reply.payloads["upload"])
    for _ in range(rng.choice([1, 2, 8])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return replace(reply, payloads={"upload": bytes(data)})


def change_length(reply: Message, rng: random.Random) -> Message:
    """An upload that is cut, or goes on."""
    data = reply.payloads["upload"]
    return replace(reply, payloads={"upload": data[: rng.randrange(len(data))] + rng.randbytes(rng.choice([0, 9]))})


def change_header(reply: Message, rng: random.Random) -> Message:
    """One entry of the header of the upload."""
    data = reply.payloads["upload"]
    length = int.from_bytes(data[4:12], "little")
    header = json.loads(data[12 : 12 + length])
    leaf = rng.choice(header["leaves"])
    leaf[rng.randrange(6)] = rng.choice([[2**30], [-1], ["4"], "index", "bits", "full", "bool", "params", -1, 0, None])
    text = json.dumps(header).encode()
    return replace(reply, payloads={"upload": data[:4] + len(text).to_bytes(8, "little") + text + data[12 + length :]})


def change_values(reply: Message, rng: random.Random) -> Message:
    """Numbers that are huge or not finite."""
    slots, masks = codec.decode(reply.payloads["upload"])
    slot = rng.choice([slot for slot, leaves in slots.items() if leaves])
    value = rng.choice([3e38, -3e38, 1e30, float("nan"), float("inf")])
    slots[slot] = {name: torch.full_like(leaf, value) for name, leaf in slots[slot].items()}
    return replace(reply, payloads={"upload": codec.encode(slots, masks)})


def change_proof(reply: Message, rng: random.Random) -> Message:
    """Another signature, or another value under the old one."""
    name = rng.choice(["proof", rng.choice(list(reply.fields))])
    return replace(reply, fields={**reply.fields, name: rng.choice([value for value in ODD if value is not None])})


class Watched(RoundLoop):
    """A round loop that counts whose uploads it leaves out."""

    def __init__(self, *given, **options):  # type: ignore[no-untyped-def]
        super().__init__(*given, **options)
        self.left_out = Counter[int]()

    def say_left_out(self, round, refused):  # type: ignore[no-untyped-def]
        self.left_out.update(refused.keys())
        super().say_left_out(round, refused)


class Kind(NamedTuple):
    """A way to be hostile: in the reply to which request, with which change, signed as a member's or not."""

    request: str
    change: Change
    signed: bool = True


KINDS = {
    "a field": Kind("train", change_field),
    "scores": Kind("train", change_scores),
    "bytes": Kind("train", change_bytes),
    "length": Kind("train", change_length),
    "header": Kind("train", change_header),
    "values": Kind("train", change_values),
    "signature": Kind("train", change_proof, signed=False),
    "evaluation": Kind("evaluate", change_field),
    "its scores": Kind("evaluate", change_scores),
    "joining": Kind("hello", change_field),
}
LENIENT = Deployment(quorum=0.5, timeout=5.0, attempts=1)


class Attack(LoopbackTransport):
    """A transport in which client 1 is hostile. A change that leaves a reply as it was is tried again."""

    kind = KINDS["a field"]
    rng = random.Random(0)

    def send(self, requests):  # type: ignore[no-untyped-def]
        message_ids = super().send(requests)
        node = 100 + BAD
        if node in requests and requests[node].fields["kind"] == self.kind.request:
            reply = self._replies[message_ids[node]]
            while (changed := self.kind.change(reply, self.rng)) == reply:
                pass
            self._replies[message_ids[node]] = sign(changed, self.services[node].key) if self.kind.signed else changed
        return message_ids


def attack(kind: Kind, messages: int, seed: int) -> Counter[str]:
    """Send so many messages of a kind, one per round; what became of them."""
    Attack.kind, Attack.rng = kind, random.Random(seed)
    return attack_joining(messages) if kind.request == "hello" else attack_rounds(kind, messages)


def attack_rounds(kind: Kind, messages: int) -> Counter[str]:
    """Hostile replies in the rounds of a run; after one that stopped the server, another run."""
    counts = Counter[str]()
    while (left := messages - counts["refused"] - counts["accepted"] - counts["crashed"]) > 0:
        plan, store = tiny_plan("fedavg", rounds=left), Store(None)
        engine = LoopbackEngine(plan, LENIENT, Attack)
        rounds = Watched(engine.plan, engine, store, eval_every=1 if kind.request == "evaluate" else 10**6)
        try:
            rounds.run()
        except Exception as error:
            counts["crashed"] += 1
            print(f"{kind.change.__name__}: {type(error).__name__}: {error!s:.200}")
        refused = engine.refusals + rounds.left_out
        counts["refused"] += refused[BAD]
        counts["accepted"] += (store.facts.next_round or 0) - refused[BAD]
        counts["harmed"] += refused.total() - refused[BAD]
        server = (store.server() or {}).get("params", {})
        counts["spoilt"] += not all(float(leaf.abs().max()) < 1e6 for leaf in server.values())
    return counts


def attack_joining(messages: int) -> Counter[str]:
    """Hostile claims, each to a server that knows nobody yet."""
    counts = Counter[str]()
    plan = tiny_plan("fedavg", rounds=1)
    services = LoopbackEngine(plan, LENIENT, LoopbackTransport).services
    for _ in range(messages):
        try:
            membership = Membership(Attack(services), len(plan.data), LENIENT, Store(None))
            membership.require_weights(weights_hash(plan))
            joined = membership.refresh()
            counts["accepted" if 100 + BAD in joined.values() else "refused"] += 1
        except Exception as error:
            counts["crashed"] += 1
            print(f"joining: {type(error).__name__}: {error!s:.200}")
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if there was any harm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    chosen = parser.parse_args(argv)
    logging.getLogger("idiolect").setLevel(logging.ERROR)
    total = Counter[str]()
    for name in chosen.kinds:
        counts = attack(KINDS[name], -(-chosen.messages // len(chosen.kinds)), chosen.seed)
        total += counts
        print(f"{name:12}", *(f"{each} {counts[each]:6}" for each in ("refused", "accepted", *HARM)), flush=True)
    return int(any(total[each] for each in HARM))


if __name__ == "__main__":
    raise SystemExit(main())
