"""The checks of what clients send, before the server uses or stores any of it. Every check raises `InputError`."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from ..contract import Download
from ..core.errors import InputError
from ..core.tree import Slots
from ..engines import Plan
from ..engines.client_evaluation import Score
from ..engines.client_round import train
from ..engines.slots import sent_names
from .messages import Message

log = logging.getLogger("idiolect")
MAX_NAME_LENGTH = 100
MAX_LINE_LENGTH = 300
MAX_SCORED_SAMPLES = 2**40
Signature = frozenset[tuple[str, str, tuple[int, ...], str]]
"""Slot, name, shape and dtype of every tensor."""


@contextmanager
def log_refusal(round: int, index: int) -> Iterator[None]:
    """Log what is wrong with a client's reply, and continue without it."""
    try:
        yield
    except InputError as error:
        log.warning("round %d: refused the reply of client %d: %s", round + 1, index, one_line(str(error)))


def require_success(reply: Message | str) -> Message:
    """Raise `InputError` if a request failed: with the transport's error, or the problem that the client reports."""
    if isinstance(reply, str):
        raise InputError(reply)
    if "problem" in reply.fields:
        raise InputError(reply.get("problem", str))
    return reply


def check_reply(request: Message, reply: Message, max_mb: float) -> Message:
    """Check that a reply belongs to a request and is not too large.

    Args:
        request: what the server asked of one client.
        reply: what came back from that client's SuperNode.
        max_mb: the largest size of all payloads together, in megabytes.
    """
    require_success(reply)
    client = request.get("client", int)
    if reply.get("client", int) != client:
        raise InputError(f"it is a reply of client {reply.fields['client']}, not of client {client}")
    if reply.size > max_mb * 1e6:
        raise InputError(f"it has {reply.size / 1e6:.1f} MB, more than max_message_mb={max_mb:g}")
    (kind, round), (asked_kind, asked_round) = (
        (message.fields.get("kind"), message.fields.get("round")) for message in (reply, request)
    )
    if (kind, round) != (asked_kind, asked_round):
        raise InputError(
            f"it replies to {kind!r:.20} of round {round!r:.20}, not to {asked_kind!r} of round {asked_round!r}"
        )
    return reply


def read_training(reply: Message) -> tuple[float, int, int]:
    """Read what a client reports of its training: loss, steps and samples."""
    loss, steps, samples = reply.get("loss", float), reply.get("steps", int), reply.get("samples", int)
    if steps < 0 or samples < 0 or math.isinf(loss):
        raise InputError(
            f"steps={steps}, samples={samples} and loss={loss} are impossible; "
            f"steps and samples must not be negative and the loss not infinite"
        )
    return loss, steps, samples


def read_scores(reply: Message) -> list[Score]:
    """Read the scores of a reply."""
    kinds = [str, str, str, float, int]
    scores = []
    for entry in reply.get_json("scores"):
        if not isinstance(entry, list) or [type(value) for value in entry] != kinds:
            raise InputError(f"{entry!r:.80} is not a score; one is [point, split, metric, value, samples]")
        scores.append(Score(*entry))
    for score in scores:
        names = (score.point, score.split, score.metric)
        if not 0 <= score.samples < MAX_SCORED_SAMPLES or math.isinf(score.value) or not all(map(is_name, names)):
            raise InputError(f"{score!r:.120} is impossible; names must be printable and numbers finite")
    return scores


def is_name(text: str) -> bool:
    """Whether a text of a client may be stored as a name."""
    return text.isprintable() and len(text) <= MAX_NAME_LENGTH


def one_line(text: str) -> str:
    """Make one log line of a client's text, so that it can neither forge lines nor flood the log.

    >>> one_line("no disk\\nINFO all is well")
    'no disk INFO all is well'
    """
    return "".join(char if char.isprintable() else " " for char in text[:MAX_LINE_LENGTH])


class UploadValidator:
    """Checks the uploads of one round. Slots, shapes and dtypes never depend on the data, so the server finds what is
    expected by running the client's code on blank samples, once for every kind of client.

    Args:
        plan: the server's plan, with blank samples and as little training as possible.
        round: the round.
        download: what the clients received in this round.
    """

    def __init__(self, plan: Plan, round: int, download: Download) -> None:
        self.plan, self.round, self.download = plan, round, download
        self._known: dict[Hashable, list[Signature]] = {}

    def check(self, index: int, slots: Slots) -> None:
        """Raise `InputError` unless slots look like an upload of this client."""
        if extra := slots.keys() - set(sent_names(self.plan.method)):
            raise InputError(f"it uploads {', '.join(sorted(extra))}, which the method does not declare")
        actual, expected = signature(slots), self._expected(index)
        if actual not in expected:
            nearest = min(expected, key=lambda one: len(actual ^ one))
            parts = (("unexpected", actual - nearest), ("missing", nearest - actual))
            raise InputError(
                "its upload does not match the method: "
                + "; ".join(f"{title} {_show(tensors)}" for title, tensors in parts if tensors)
            )

    def _expected(self, index: int) -> list[Signature]:
        """What an upload of a client may look like: of a newcomer, and of one that has a state."""
        plan = self.plan
        model = plan.networks[index] if plan.networks else 0
        key = (model, plan.method.variant(index), signature(self.download.each.get(index, {})))
        if key not in self._known:
            new = train(plan, index, self.round, None, self.download.of(index))
            again = train(plan, index, self.round, new.state, self.download.of(index))
            self._known[key] = [signature(each.upload.slots) for each in (new, again) if each.upload is not None]
        return self._known[key]


def signature(slots: Slots) -> Signature:
    """Describe slots without their values."""
    return frozenset(
        (slot, name, tuple(leaf.shape), str(leaf.dtype))
        for slot, leaves in slots.items()
        for name, leaf in leaves.items()
    )


def _show(tensors: Signature, most: int = 3) -> str:
    shown = [f"{slot} {name} {list(shape)} {dtype}" for slot, name, shape, dtype in sorted(tensors)[:most]]
    return ", ".join([*shown, "..."] if len(tensors) > most else shown)
