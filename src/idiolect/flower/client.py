"""The client's side: what it does when the server asks. Its state stays on its own disk; a reply holds the declared
upload and named numbers, nothing else.

A round may be asked for twice (the server was restarted) or be lost (the reply was late, or refused). So the client
keeps the state before a round beside the one after it, and each request says which round of this client was accepted.
"""

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
from ..data import Federation
from ..data.description import LONGEST, describe
from ..engines import Plan
from ..engines.client_evaluation import evaluate, evaluate_global
from ..engines.client_round import train
from ..engines.slots import first_client, gather
from ..runs.setup import weights_hash
from ..runs.store import Row, Store
from .folders import BEFORE_ALL_ROUNDS, MODEL_FILE, STATE_FILE, make_private, write_facts
from .messages import Message, Value, sign, write_scores

log = logging.getLogger("idiolect")


class ClientService:
    """Answers the server's requests for one client.

    Args:
        plan: the plan, with this client's data.
        index: the client's number.
        folder: where its state is kept: `state.sqlite` for training, `model.sqlite` for what it predicts with. None
            keeps both in memory.
        notes: what else to store beside the model, for its export.
    """

    def __init__(
        self, plan: Plan, index: int, folder: Path | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        self.plan, self.index, self.notes = plan, index, dict(notes or {})
        self.folder = folder
        if folder is not None:
            make_private(folder)
        self.states, self.models = (Store(folder and folder / name) for name in (STATE_FILE, MODEL_FILE))

    def handle(self, request: Message) -> Message:
        """Do what a request asks; the reply."""
        handlers = {"hello": self.hello, "train": self.train, "evaluate": self.evaluate, "finish": self.finish}
        kind = request.get("kind", str)
        if kind not in handlers:
            raise InputError(f"the server asks for {kind!r}, but this client knows {', '.join(handlers)}")
        if request.fields.get("client", self.index) != self.index:
            raise InputError(f"the server asks client {request.fields['client']}, but this is client {self.index}")
        with torch.random.fork_rng(devices=[]):
            return handlers[kind](request)

    def close(self) -> None:
        """Close the files."""
        self.states.close()
        self.models.close()
        if self.folder is not None:
            make_private(self.folder)

    @property
    def key(self) -> str:
        """The secret of this client's folder: it signs replies, and proves after a restart who replies."""
        return read_key(self.states)

    def hello(self, request: Message) -> Message:
        """Say who this client is, and how many samples it has."""
        return self._reply(request, introduce(self.plan.data, self.index, weights_hash(self.plan)))

    def train(self, request: Message) -> Message:
        """Train in a round, and send the upload."""
        round, (state, state_round) = request.get("round", int), self._load_state(request)
        outcome = train(self.plan, self.index, round, state, request.download())
        fields: dict[str, Value] = {
            "loss": outcome.loss,
            "steps": outcome.steps,
            "samples": outcome.samples,
            "gradients": outcome.effort.gradients,
            "passes": outcome.effort.passes,
            "scores": write_scores(outcome.scores),
            "state": state_round,
        }
        if outcome.upload is None:
            return self._reply(request, fields)
        accepted = request.fields.get("accepted", BEFORE_ALL_ROUNDS)
        self.states.commit(round, {}, {self.index: outcome.state}, [], {"selected": accepted})
        return self._reply(request, fields, codec.encode(outcome.upload.slots, outcome.upload.masks))

    def evaluate(self, request: Message) -> Message:
        """Evaluate the personal model and send its scores; the model is stored here."""
        round, unseen, download = request.get("round", int), request.get("unseen", bool), request.download()
        state, state_round = self._load_state(request)
        scores = evaluate(self.plan, self.index, round, state, download, unseen)
        scores += evaluate_global(self.plan, [self.index], round, request.decode("shared"))[self.index]
        ctx = self.plan.context(self.index, round, newcomer=state is None)
        work = gather(ctx, first_client(ctx) if state is None else state, download, training=False)
        personal = self.plan.method.personal_model(ctx, work)
        cohort = "unseen" if unseen else "seen"
        rows: list[Row] = [(round, self.index, cohort, s.point, s.split, s.metric, s.value, s.samples) for s in scores]
        selected = request.fields.get("selected", BEFORE_ALL_ROUNDS)
        facts = {"client": self.index, "unseen": unseen, "last": round, "selected": selected}
        self.models.commit(round, {}, {self.index: personal}, rows, facts | self.notes)
        return self._reply(request, {"scores": write_scores(scores), "state": state_round})

    def finish(self, request: Message) -> Message:
        """The run is complete: store which round's model is the one to use."""
        write_facts(self.models, {"selected": request.get("selected", int), "complete": True})
        return self._reply(request, {})

    def _load_state(self, request: Message) -> tuple[Slots | None, int]:
        """This client's state after the round that was accepted last, and the round that it is of; None for a newcomer.
        A folder that was lost or restored has none, or an older one: the server is told, and decides."""
        if "accepted" not in request.fields:
            return None, BEFORE_ALL_ROUNDS
        accepted = request.get("accepted", int)
        state, known = (
            self.states.clients([self.index], accepted)[self.index],
            self.states.round_of(self.index, accepted),
        )
        if state is None or known is None:
            log.warning("client %d has no state of the rounds it took part in, so it starts anew", self.index)
            return None, BEFORE_ALL_ROUNDS
        if known < accepted:
            log.warning(
                "client %d has its state of round %d, but round %d was accepted last: was its folder restored from a "
                "backup?", self.index, known + 1, accepted + 1,
            )  # fmt: skip
        return state, known

    def _reply(self, request: Message, fields: Mapping[str, Value], upload: bytes | None = None) -> Message:
        return write_reply(request, self.index, self.key, fields, upload)


def greet(data: Federation, index: int, folder: Path, request: Message) -> Message:
    """Say who a client is before it is known what all clients' data have in common, and so which network it has."""
    make_private(folder)
    states = Store(folder / STATE_FILE)
    try:
        return write_reply(request, index, read_key(states), introduce(data, index))
    finally:
        states.close()
        make_private(folder)


def introduce(data: Federation, index: int, weights: str = "") -> dict[str, Value]:
    """Who a client is: how many samples it has, what they look like, and the hash of its initial weights."""
    client, told = data.clients[index], str(describe(data, index))
    if len(told) > LONGEST:
        raise InputError(
            f"what client {index} would tell of its data has {len(told):,} characters, and at most {LONGEST:,} are"
            " accepted: it has too many different words or values of text; number them by a list that all clients have"
        )
    return {
        "name": client.name,
        "samples": len(client),
        "val": len(client.val),
        "test": len(client.test),
        "data": told,
        "weights": weights,
    }


def read_key(states: Store) -> str:
    """The secret of a client's folder, which is made when it is first asked for."""
    if (key := states.fact("key")) is None:
        key = secrets.token_hex(16)
        write_facts(states, {"key": key})
    return str(key)


def write_reply(
    request: Message, index: int, key: str, fields: Mapping[str, Value], upload: bytes | None = None
) -> Message:
    """A signed reply to a request; that to `hello` tells the key."""
    repeated = {name: request.fields[name] for name in ("kind", "round", "nonce") if name in request.fields}
    known: dict[str, Value] = {"key": key} if request.fields.get("kind") == "hello" else {}
    payloads = {} if upload is None else {"upload": upload}
    return sign(Message({"client": index, **repeated, **fields, **known}, payloads), key)


def report_problems(handle: Callable[[Message], Message], request: Message, index: int) -> Message:
    """Handle a request; an error becomes a reply with a `problem`, so that the server can log it.

    Args:
        handle: what makes a reply of a request.
        request: the server's request.
        index: the client's number.
    """
    try:
        return handle(request)
    except IdiolectError as error:
        log.warning("client %d cannot reply: %s", index, error)
        problem = str(error)
    except Exception as error:  # its text may quote data, which must not leave
        log.exception("client %d cannot reply", index)
        problem = f"it failed with {type(error).__name__}; see the client's own log"
    return Message({"client": index, "problem": problem})
