"""The messages between server and clients: named plain values and encoded slots. Nothing in a message is executed, and
every value is checked when it is read."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..core import codec
from ..core.errors import InputError
from ..core.tree import Slots
from ..engines.client_evaluation import Score

Value = int | float | str | bool
T = TypeVar("T", int, float, str, bool)


@dataclass(frozen=True)
class Message:
    """A request of the server or the reply of a client. `transport.to_records` makes a Flower message's content of it.

    Attributes:
        fields: plain values by name. A request has `kind` (`hello`, `train`, `evaluate` or `finish`) and a `nonce`,
            which no other has; a reply has `client`, repeats both, and is signed (`sign`) with the key that the client
            joined with. It has a `problem` where the client could not do what was asked.
        payloads: encoded slots by name: `shared` and `own` are the two parts of a download, `upload` is an upload.

    >>> Message({"round": 3}).get("round", int)
    3
    """

    fields: Mapping[str, Value]
    payloads: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all fields and payloads, with their names."""
        head = sum(len(name) + (len(value) if isinstance(value, str) else 8) for name, value in self.fields.items())
        return head + sum(len(name) + len(data) for name, data in self.payloads.items())

    def get(self, name: str, kind: type[T]) -> T:
        """Read a field that must exist and be of a type."""
        value = self.fields.get(name)
        if type(value) is not kind:
            raise InputError(f"the field {name} must be of type {kind.__name__}, but is {value!r:.80}")
        return value

    def get_json(self, name: str) -> Any:
        """Read a field that holds JSON."""
        try:
            return json.loads(self.get(name, str))
        except (ValueError, RecursionError) as error:
            raise InputError(f"the field {name} is not valid JSON") from error

    def download(self) -> Slots:
        """Decode both parts of a download."""
        return {slot: leaves for name in self.payloads for slot, leaves in self.decode(name).items()}

    def decode(self, name: str) -> Slots:
        """Decode one part of a download; nothing of the kind is empty. It is never sent in part, so it is as large as
        its bytes."""
        if name not in self.payloads:
            return {}
        if any(leaf.partial for leaf in codec.read_header(self.payloads[name])[1]):
            raise InputError("the server sends a part of a leaf, but a download is whole")
        return codec.decode(self.payloads[name])[0]


def sign(message: Message, key: str) -> Message:
    """The message with a `proof` over all its fields and payloads, which only who knows the key can make."""
    return replace(message, fields={**message.fields, "proof": _prove(message, key)})


def is_signed(message: Message, key: str) -> bool:
    """Whether a message is as it was signed with a key; one that cannot even be written was not signed.

    >>> is_signed(sign(Message({"round": 3}), "secret"), "secret"), is_signed(Message({"round": 3}), "secret")
    (True, False)
    """
    proof = message.fields.get("proof")
    try:
        return isinstance(proof, str) and hmac.compare_digest(proof.encode(), _prove(message, key).encode())
    except ValueError:
        return False


def _prove(message: Message, key: str) -> str:
    fields = sorted((name, value) for name, value in message.fields.items() if name != "proof")
    payloads = sorted((name, hashlib.sha256(data).hexdigest()) for name, data in message.payloads.items())
    return hmac.new(key.encode(), json.dumps([fields, payloads]).encode(), "sha256").hexdigest()


def write_scores(scores: Sequence[Score]) -> str:
    """Write scores as JSON; `reports.ScoreValidator` reads them."""
    return json.dumps([[s.point, s.split, s.metric, s.value, s.samples] for s in scores])
