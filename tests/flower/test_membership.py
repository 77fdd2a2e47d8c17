"""Who is admitted to a federation, and as whom."""

import pytest

from idiolect.core.errors import IdiolectError
from idiolect.flower.loopback import LoopbackEngine, LoopbackTransport
from idiolect.flower.membership import Membership
from idiolect.flower.messages import Message
from idiolect.flower.settings import Deployment
from idiolect.runs.store import Store
from idiolect.testing import tiny_plan

DATA = '{"classes": 3, "words": null, "x": [[4], "float32"], "y": [[], "int64"]}'
QUICK = Deployment(quorum=0.5, timeout=0.05)


class Claims:
    """Nodes that say who they are."""

    poll = 0.0

    def __init__(self, **nodes):
        self.claims = {int(name.removeprefix("n")): fields for name, fields in nodes.items()}

    def nodes(self):
        return frozenset(self.claims)

    def send(self, requests):
        return {node: f"m{node}" for node in requests}

    def collect(self, message_ids):
        claims = {message_id: self.claims[int(message_id.removeprefix("m"))] for message_id in message_ids}
        return {message_id: each if isinstance(each, str) else Message(each) for message_id, each in claims.items()}


def claim(client, key="k", **more):
    return {
        "client": client,
        "key": key,
        "name": f"c{client}",
        "samples": 4,
        "val": 2,
        "test": 2,
        "data": DATA,
        "weights": "w",
        **more,
    }


def admit(transport, store=None, weights=None):
    membership = Membership(transport, 3, QUICK, Store(None) if store is None else store)
    if weights:
        membership.require_weights(weights)
    return membership.refresh()


def test_nodes_become_clients():
    assert admit(Claims(n7=claim(0), n9=claim(2))) == {0: 7, 2: 9}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (claim(3), "it claims to be client 3, but the clients are 0 to 2"),
        (claim("0"), "the field client must be of type int, but is '0'"),
        (claim(True), "the field client must be of type int, but is True"),
        (claim(0, samples=True), "the field samples must be of type int, but is True"),
        (claim(0, samples=4.0), "the field samples must be of type int, but is 4.0"),
        (claim(0, samples=float("nan")), "the field samples must be of type int, but is nan"),
        (claim(0, test="2"), "the field test must be of type int, but is '2'"),
        (claim(0, samples=2**39), "client 0 has 549755813888 training samples; 1 to"),
        (claim(0, samples=0), "client 0 has 0 training samples; 1 to"),
        (claim(0, weights="other"), "the initial weights of client 0 differ from the server's"),
        (claim(0, val=-1), "client 0 has an impossible number of validation or test samples"),
        (claim(0, data="{}"), "a client's description of its data cannot be used"),
        (claim(0, data=DATA.replace("[4]", "[99999999999]")), "a client's description of its data cannot be used"),
        (claim(0, data=DATA.replace("float32", "load")), "a client's description of its data cannot be used"),
        (claim(0, data=DATA.replace("3", "3000000000")), "a client's description of its data cannot be used"),
        (claim(0, data="[" * 9000), "a client's description of its data cannot be used"),
        (claim(0, name="x" * 20_000), "it says too much"),
        ({"client": 0}, "the field key must be of type str, but is None"),
        ({"client": 0, "problem": "no data here"}, "no data here"),
        ("it crashed", "it crashed"),
    ],
)
def test_a_claim_that_cannot_be_is_refused_with_a_reason(fields, reason, caplog):
    assert admit(Claims(n7=fields), weights="w") == {}
    assert f"SuperNode 7 was not admitted: {reason}" in caplog.text


def test_another_clients_number_is_refused(caplog):
    store = Store(None)
    assert admit(Claims(n7=claim(0, key="mine")), store) == {0: 7}
    assert admit(Claims(n7=claim(0, key="mine"), n8=claim(0, key="guessed")), store) == {0: 7}
    assert (
        "SuperNode 8 was not admitted: it claims to be client 0, which belongs to another node with another key"
        in caplog.text
    )


def test_the_key_brings_a_client_back_from_another_node():
    store = Store(None)
    admit(Claims(n7=claim(0, key="mine")), store)
    assert admit(Claims(n8=claim(0, key="mine")), store) == {0: 8}


def test_a_copy_of_a_client_is_refused_while_the_client_is_connected(caplog):
    store = Store(None)
    admit(Claims(n7=claim(0, key="mine")), store)
    assert admit(Claims(n7=claim(0, key="mine"), n8=claim(0, key="mine")), store) == {0: 7}
    assert "SuperNode 8 was not admitted: it claims to be client 0, whose node is still connected" in caplog.text


def test_an_authenticated_node_may_lose_its_key():
    store = Store(None)
    admit(Claims(n7=claim(0, key="mine")), store)
    assert admit(Claims(n7=claim(0, key="new")), store) == {0: 7}


def test_a_refused_node_is_not_asked_at_once_again():
    transport = Claims(n7=claim(5))
    membership = Membership(transport, 3, QUICK, Store(None))
    membership.refresh()
    transport.claims[7] = claim(1)
    assert membership.refresh() == {}


def test_weights_are_checked_when_they_become_known(caplog):
    membership = Membership(Claims(n7=claim(0), n8=claim(1, weights="other")), 3, QUICK, Store(None))
    membership.refresh()
    membership.require_weights("w")
    assert membership.refresh() == {0: 7}


def test_waiting_ends_when_enough_are_there():
    membership = Membership(Claims(n7=claim(0), n8=claim(1)), 3, QUICK, Store(None))
    assert membership.wait_for(range(3), 2, seconds=0.01) == {0: 7, 1: 8}
    with pytest.raises(IdiolectError, match="only 2 of 3 clients are connected and 3 are needed"):
        membership.wait_for(range(3), 3, seconds=0.01)


def test_a_client_that_joins_late_takes_part():
    class Late(LoopbackTransport):
        late = True

        def nodes(self):
            return super().nodes() - ({101} if self.late else set())

    engine = LoopbackEngine(tiny_plan("fedavg"), QUICK, Late)
    assert 1 not in engine.membership.refresh()
    engine.membership.transport.late = False
    assert engine.membership.refresh()[1] == 101


def test_sample_counts_are_fixed_at_joining(caplog):
    store = Store(None)
    admit(Claims(n7=claim(0)), store)
    assert admit(Claims(n7=claim(0, samples=10**8)), store) == {}
    assert "sample counts are fixed at joining" in caplog.text
