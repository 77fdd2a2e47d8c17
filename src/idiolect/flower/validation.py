"""The checks of what clients send, before the server uses or stores any of it. Every check raises `InputError`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager

from ..contract import Download, Upload
from ..core import codec
from ..core.errors import InputError
from ..core.names import visible
from ..core.tree import Slots
from ..engines import Plan
from ..engines.client_round import train
from ..engines.slots import sent_names
from .messages import Message, is_signed

log = logging.getLogger("idiolect")
MAX_LINE_LENGTH = 300
Signature = frozenset[tuple[str, str, tuple[int, ...], str]]
"""Slot, name, shape and dtype of every tensor."""


@contextmanager
def refuse_errors() -> Iterator[None]:
    """Turn whatever a client's message causes into an `InputError`: the worst is that it is refused."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"it cannot be read ({type(error).__name__})") from error


def require_success(reply: Message | str) -> Message:
    """Raise `InputError` if a request failed: with the transport's error, or the problem that the client reports."""
    if isinstance(reply, str):
        raise InputError(reply)
    if "problem" in reply.fields:
        raise InputError(reply.get("problem", str))
    return reply


def check_reply(request: Message, reply: Message, max_mb: float, key: str) -> Message:
    """Check that a reply belongs to a request, comes from its client and is not too large.

    Args:
        request: what the server asked of one client.
        reply: what came back from that client's SuperNode.
        max_mb: the largest size of its fields and payloads together, in megabytes.
        key: the key that the client signs with.
    """
    if reply.size > max_mb * 1e6:
        raise InputError(f"it has {reply.size / 1e6:.1f} MB, more than max_message_mb={max_mb:g}")
    require_success(reply)
    client = request.get("client", int)
    if reply.get("client", int) != client:
        raise InputError(f"it is a reply of client {reply.fields['client']!r:.20}, not of client {client}")
    if not is_signed(reply, key):
        raise InputError("it is not signed with the key that the client had when it joined")
    (kind, round), (asked_kind, asked_round) = (
        (message.fields.get("kind"), message.fields.get("round")) for message in (reply, request)
    )
    if (kind, round) != (asked_kind, asked_round):
        raise InputError(
            f"it replies to {kind!r:.20} of round {round!r:.20}, not to {asked_kind!r} of round {asked_round!r}"
        )
    if reply.fields.get("nonce") != request.fields.get("nonce"):
        raise InputError("it replies to an earlier request")
    return reply


def one_line(text: str) -> str:
    """Make one log line of a client's text, so that it can neither forge lines nor flood the log.

    >>> one_line("no disk\\nINFO all is well")
    'no disk\\\\nINFO all is well'
    """
    return visible(text[:MAX_LINE_LENGTH])[:MAX_LINE_LENGTH]


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

    def read(self, index: int, reply: Message, samples: int) -> Upload | None:
        """Read a client's upload, None where it sends nothing.

        Args:
            index: the client.
            reply: its reply.
            samples: how many training samples the upload counts for.
        """
        if not reply.payloads:
            return None
        if set(reply.payloads) != {"upload"}:
            raise InputError(f"it sends {sorted(reply.payloads)!r:.80}, but only an upload was asked for")
        self.check(index, *codec.read_header(reply.payloads["upload"]))
        upload = Upload(*codec.decode(reply.payloads["upload"]))
        if "weight" in upload.slots and float(upload.weight) != samples:
            raise InputError(f"it counts for {float(upload.weight):.6g} samples, but had {samples} when it joined")
        return upload

    def check(self, index: int, slots: Collection[str], leaves: Iterable[codec.Leaf]) -> None:
        """Raise `InputError` unless a header announces an upload of this client."""
        if extra := set(slots) - set(sent_names(self.plan.method)):
            shown = one_line(", ".join(sorted(extra)))
            raise InputError(f"it uploads {shown:.80}, which the method does not declare")
        actual = frozenset((leaf.slot, leaf.name, leaf.shape, str(leaf.dtype)) for leaf in leaves)
        expected = self._expect(index)
        if actual not in expected:
            nearest = min(expected, key=lambda one: len(actual ^ one))
            parts = (("unexpected", actual - nearest), ("missing", nearest - actual))
            raise InputError(
                "its upload does not match the method: "
                + "; ".join(f"{title} {_show(tensors)}" for title, tensors in parts if tensors)
            )

    def _expect(self, index: int) -> list[Signature]:
        """What an upload of a client may look like: of a newcomer, and of one that has a state."""
        plan = self.plan
        model = plan.networks[index] if plan.networks else 0
        key = (model, plan.method.variant(index), signature(self.download.each.get(index, {})))
        if key not in self._known:
            new = train(plan, index, self.round, None, self.download.of(index))
            again = train(plan, index, self.round, new.state, self.download.of(index))
            self._known[key] = [
                signature(outcome.upload.slots) for outcome in (new, again) if outcome.upload is not None
            ]
        return self._known[key]


def signature(slots: Slots) -> Signature:
    """Describe slots without their values."""
    return frozenset(
        (slot, name, tuple(leaf.shape), str(leaf.dtype))
        for slot, leaves in slots.items()
        for name, leaf in leaves.items()
    )


def _show(tensors: Signature, most: int = 3) -> str:
    texts = [f"{slot} {name} {list(shape)} {dtype}" for slot, name, shape, dtype in sorted(tensors)[:most]]
    return ", ".join([*texts, "..."] if len(tensors) > most else texts)
