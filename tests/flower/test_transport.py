"""Messages through Flower: only plain values and bytes, and nothing that a client sends stops the server."""

import pytest
import torch

from idiolect.core import codec
from idiolect.flower.messages import Message
from idiolect.flower.transport import GridTransport, from_records, to_records

flwr = pytest.importorskip("flwr.app", reason="Flower is not installed")

MESSAGE = Message({"kind": "train", "round": 3, "loss": 0.5, "fresh": True}, {"upload": codec.encode({"a": {}})})


def test_a_message_is_the_same_after_sending():
    records = to_records(MESSAGE)
    assert from_records(records) == MESSAGE
    assert records["bodies"]["upload"].stype == "idiolect.slots", "Flower has nothing to unpickle"


def test_the_names_of_the_records_stay_as_they_are():
    assert set(to_records(MESSAGE)) == {"head", "bodies"}, "older clients and servers use these names"


def test_a_payload_for_all_clients_is_one_object_for_flower():
    payload = codec.encode({"params": {"w": torch.ones(100)}})
    one, other = (to_records(Message({"client": i}, {"shared": payload})) for i in range(2))
    assert one["bodies"].object_id == other["bodies"].object_id


class Grid:
    """What a SuperLink might hand out."""

    def __init__(self, replies):
        self.replies = replies

    def pull_messages(self, message_ids):
        reply = self.replies[message_ids[0]]
        if isinstance(reply, Exception):
            raise reply
        return reply


class Reply:
    def __init__(self, content=None, error=None):
        self.content = content
        self.error = error

    def has_error(self):
        return self.error is not None


def test_replies_are_fetched_one_by_one_so_that_a_bad_one_affects_no_other():
    grid = Grid(
        {
            "good": [Reply(to_records(MESSAGE))],
            "late": [],
            "failed": [Reply(error=flwr.Error(3, "the node is gone"))],
            "torn": ValueError("unexpected object"),
            "strange": [Reply(flwr.RecordDict({"x": flwr.MetricRecord({"y": 1})}))],
        }
    )
    replies = GridTransport(grid, 10.0).collect(["good", "late", "failed", "torn", "strange"])
    assert replies["good"] == MESSAGE
    assert "late" not in replies
    assert replies["failed"] == "the node is gone"
    assert replies["torn"] == "its message cannot be read (ValueError: unexpected object)"
    assert replies["strange"].startswith("its message cannot be read (ValueError")
