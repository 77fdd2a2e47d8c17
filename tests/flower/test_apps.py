"""Parcels by Flower: only plain values and bytes, and nothing that a client sends stops the server."""

import pytest
import torch

from idiolect.core import codec
from idiolect.core.errors import InputError, MissingExtraError
from idiolect.flower import apps
from idiolect.flower.messages import Parcel
from idiolect.flower.project import Project

flwr = pytest.importorskip("flwr.app", reason="Flower is not installed")

PARCEL = Parcel({"kind": "train", "round": 3, "loss": 0.5, "fresh": True}, {"upload": codec.encode({"a": {}})})


def test_a_parcel_survives_the_way():
    sent = apps.packed(PARCEL)
    assert apps.unpacked(sent) == PARCEL
    assert sent["bodies"]["upload"].stype == "idiolect.slots", "Flower has nothing to unpickle"


def test_what_all_get_is_one_object_to_flower():
    body = codec.encode({"params": {"w": torch.ones(100)}})
    one, other = (apps.packed(Parcel({"client": i}, {"shared": body})) for i in range(2))
    assert one["bodies"].object_id == other["bodies"].object_id


class Grid:
    """What a SuperLink might hand out."""

    def __init__(self, replies):
        self.replies = replies

    def pull_messages(self, tickets):
        reply = self.replies[tickets[0]]
        if isinstance(reply, Exception):
            raise reply
        return reply


class Reply:
    def __init__(self, content=None, error=None):
        self.content = content
        self.error = error

    def has_error(self):
        return self.error is not None


def test_answers_are_fetched_one_by_one_so_that_a_bad_one_spoils_no_other():
    grid = Grid(
        {
            "good": [Reply(apps.packed(PARCEL))],
            "late": [],
            "failed": [Reply(error=flwr.Error(3, "the node is gone"))],
            "torn": ValueError("unexpected object"),
            "strange": [Reply(flwr.RecordDict({"x": flwr.MetricRecord({"y": 1})}))],
        }
    )
    found = apps.GridPost(grid, 10.0).collect(["good", "late", "failed", "torn", "strange"])
    assert found["good"] == PARCEL
    assert "late" not in found
    assert found["failed"] == "the node is gone"
    assert found["torn"] == "its message cannot be read (ValueError: unexpected object)"
    assert found["strange"].startswith("its message cannot be read (ValueError")


@pytest.mark.parametrize("node", [{"client": 2}, {"partition-id": 2, "num-partitions": 3}])
def test_a_node_says_which_client_it_is(node):
    assert apps.client_number(node) == 2


def test_a_node_that_does_not_say_it_is_told_how():
    with pytest.raises(InputError, match="start it with a number, as in --node-config 'client=0'"):
        apps.client_number({})


def test_without_flower_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(apps.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install idiolect\[flower\]"):
        apps.client_app(Project())
