"""How messages reach clients. `Transport` is what the server needs; `GridTransport` does it with Flower's Grid."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from .messages import Message

if TYPE_CHECKING:
    from flwr.app import RecordDict
    from flwr.serverapp import Grid

log = logging.getLogger("idiolect")
SERIALIZATION = "idiolect.slots"
"""What Flower is told about payloads, so that it does not try to decode them."""
MESSAGE_TYPES = {"hello": "query", "finish": "query", "train": "train", "evaluate": "evaluate"}
"""Flower's message type for each kind of request."""


class Transport(Protocol):
    """Sends requests to SuperNodes, which are known by their node ids, and collects the replies."""

    poll: float
    """Seconds between two looks for replies."""

    def nodes(self) -> frozenset[int]:
        """The SuperNodes that are connected."""
        ...

    def send(self, requests: Mapping[int, Message]) -> dict[int, str]:
        """Send a request to each node; the message ids by node."""
        ...

    def collect(self, message_ids: Collection[str]) -> dict[str, Message | str]:
        """The replies that have arrived, by the ids of their requests; a text says why there will be none."""
        ...


class GridTransport:
    """Messages through Flower's Grid. Every reply is fetched alone, so an unreadable one does not affect the others.

    Args:
        grid: the Grid that Flower hands to a ServerApp.
        ttl: seconds after which Flower drops a message.
    """

    poll = 0.5

    def __init__(self, grid: Grid, ttl: float) -> None:
        self.grid, self.ttl = grid, ttl

    def nodes(self) -> frozenset[int]:
        """The SuperNodes that are connected."""
        return frozenset(self.grid.get_node_ids())

    def send(self, requests: Mapping[int, Message]) -> dict[int, str]:
        """Push requests to the SuperLink."""
        import flwr.app

        messages = [
            flwr.app.Message(to_records(request), node, MESSAGE_TYPES[request.get("kind", str)], ttl=self.ttl)
            for node, request in requests.items()
        ]
        message_ids = self.grid.push_messages(messages) if messages else ()
        return {node: message_id for node, message_id in zip(requests, message_ids, strict=False) if message_id}

    def collect(self, message_ids: Collection[str]) -> dict[str, Message | str]:
        """Pull the replies that the SuperLink has."""
        import httpx

        replies: dict[str, Message | str] = {}
        for message_id in message_ids:
            try:
                for reply in self.grid.pull_messages([message_id]):
                    failed = reply.has_error()
                    replies[message_id] = str(reply.error.reason) if failed else from_records(reply.content)
            except httpx.HTTPError as error:
                log.warning("the SuperLink cannot be reached: %s", error)
            except Exception as error:  # whatever a client sends must not stop the server
                replies[message_id] = f"its message cannot be read ({type(error).__name__}: {error!s:.200})"
        return replies


def to_records(message: Message) -> RecordDict:
    """Turn a message into the content of a Flower message. Payloads go as raw bytes, which Flower sends in chunks, and
    only once where several clients get the same."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {name: Array("uint8", (len(data),), SERIALIZATION, data) for name, data in message.payloads.items()}
    return RecordDict({"head": ConfigRecord(dict(message.fields)), "bodies": ArrayRecord(arrays)})


def from_records(content: RecordDict) -> Message:
    """Read a message from the content of a Flower message. Only plain values and bytes are taken; nothing is
    unpickled."""
    (config,), (arrays,) = content.config_records.values(), content.array_records.values()
    fields = {name: value for name, value in config.items() if isinstance(value, int | float | str | bool)}
    return Message(fields, {name: bytes(array.data) for name, array in arrays.items()})
