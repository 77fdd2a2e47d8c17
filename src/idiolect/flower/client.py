"""The client's side: a desk that answers what the server asks. State stays here, on the client's own disk; an answer
holds the declared upload and named numbers, nothing else.

A round may be asked for twice (the server was restarted) or come to nothing (the answer was late, or refused). So what
a client trains is kept beside what it had, and each question says which round of this client counts."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..core import codec
from ..core.errors import IdiolectError, InputError
from ..core.tree import Slots
from ..engines import Plan
from ..engines.client import evaluate, train
from ..runs.setup import weights_hash
from ..runs.store import Row, Store
from .messages import Parcel, Value, write_scores
from .project import describe_data

log = logging.getLogger("idiolect")
NONE = -(2**40)
"""Before all rounds."""


class Desk:
    """One client of a federation.

    Args:
        plan: the plan, with this client's data.
        index: the client's number.
        folder: where its state is kept: `state.sqlite` for training, `model.sqlite` for what it predicts with. None
            keeps both in memory.
        notes: what else to keep beside the model, for its export.
    """

    def __init__(
        self, plan: Plan, index: int, folder: Path | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        self.plan, self.index, self.notes = plan, index, dict(notes or {})
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.states, self.models = (Store(folder and folder / f"{name}.sqlite") for name in ("state", "model"))

    def close(self) -> None:
        """Release the files."""
        self.states.close()
        self.models.close()

    def answer(self, ask: Parcel) -> Parcel:
        """The answer to a question."""
        kinds = {"hello": self.hello, "train": self.train, "evaluate": self.evaluate, "finish": self.finish}
        kind = ask.get("kind", str)
        if kind not in kinds:
            raise InputError(f"the server asks for {kind!r}, but this client knows {', '.join(kinds)}")
        if ask.head.get("client", self.index) != self.index:
            raise InputError(f"the server asks client {ask.head['client']}, but this is client {self.index}")
        with torch.random.fork_rng(devices=[]):
            return kinds[kind](ask)

    def reply(self, ask: Parcel, head: dict[str, Value], body: bytes | None = None) -> Parcel:
        """An answer, which names the client and the round."""
        named = {name: ask.head[name] for name in ("kind", "round") if name in ask.head}
        return Parcel({"client": self.index, **named, **head}, {} if body is None else {"upload": body})

    def hello(self, ask: Parcel) -> Parcel:
        """Who this is. The key proves, after a restart, that it is still the same client."""
        if (key := self.states.fact("key")) is None:
            key = secrets.token_hex(16)
            self.states.commit(NONE, {}, {}, [], {"key": key})
        client = self.plan.data.clients[self.index]
        facts: dict[str, Value] = {
            "name": client.name,
            "samples": len(client),
            "data": describe_data(self.plan.data, self.index),
            "weights": weights_hash(self.plan),
            "key": key,
        }
        return self.reply(ask, facts)

    def state(self, ask: Parcel) -> Slots | None:
        """This client's state after the round that the server names; None for a newcomer."""
        if "accepted" not in ask.head:
            return None
        state = self.states.clients([self.index], ask.get("accepted", int))[self.index]
        if state is None:
            log.warning("client %d has no state of the rounds it took part in, so it starts anew", self.index)
        return state

    def train(self, ask: Parcel) -> Parcel:
        """This client's part of a round."""
        round, state = ask.get("round", int), self.state(ask)
        outcome = train(self.plan, self.index, round, state, ask.slots()[0])
        head: dict[str, Value] = {
            "loss": outcome.loss,
            "steps": outcome.steps,
            "samples": outcome.samples,
            "scores": write_scores(outcome.scores),
            "fresh": state is None,
        }
        if outcome.upload is None:
            return self.reply(ask, head)
        kept = ask.head.get("accepted", NONE)
        self.states.commit(round, {}, {self.index: outcome.state}, [], {"selected": kept})
        return self.reply(ask, head, codec.encode(outcome.upload.slots, outcome.upload.masks))

    def evaluate(self, ask: Parcel) -> Parcel:
        """This client's scores; the model that they belong to is kept."""
        round, state, unseen = ask.get("round", int), self.state(ask), ask.get("unseen", bool)
        download = ask.slots()[0]
        scores = evaluate(self.plan, self.index, round, state, download, unseen)
        ctx = self.plan.context(self.index, round, newcomer=state is None)
        view = self.plan.method.view(ctx, self.plan.method.client_init(ctx) if state is None else state, download)
        cohort = "unseen" if unseen else "seen"
        rows: list[Row] = [(round, self.index, cohort, s.point, s.split, s.metric, s.value, s.samples) for s in scores]
        facts = {"client": self.index, "unseen": unseen, "last": round, "selected": ask.head.get("selected", NONE)}
        self.models.commit(round, {}, {self.index: view}, rows, facts | self.notes)
        return self.reply(ask, {"scores": write_scores(scores)})

    def finish(self, ask: Parcel) -> Parcel:
        """The run is complete: which round's model is the one to use."""
        self.models.commit(NONE, {}, {}, [], {"selected": ask.get("selected", int), "complete": True})
        return self.reply(ask, {})


def guarded(ask: Parcel, index: int, answer: Callable[[Parcel], Parcel]) -> Parcel:
    """The answer to a question; what goes wrong becomes an answer too, so that the server's log can say it."""
    try:
        return answer(ask)
    except IdiolectError as error:
        log.warning("client %d cannot answer: %s", index, error)
        problem = str(error)
    except Exception as error:  # what it says may quote data, which must not leave
        log.exception("client %d cannot answer", index)
        problem = f"it failed with {type(error).__name__}; its own log says where"
    return Parcel({"client": index, "problem": problem})
