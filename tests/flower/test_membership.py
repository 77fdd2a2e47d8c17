"""Who is admitted to a federation, and as whom."""

import pytest

from idiolect.core.errors import IdiolectError
from idiolect.flower.loopback import Loopback, LoopbackEngine
from idiolect.flower.membership import Roster
from idiolect.flower.messages import Parcel
from idiolect.flower.settings import Deployment
from idiolect.runs.store import Store
from idiolect.testing import tiny_plan

QUICK = Deployment(quorum=0.5, timeout=0.05)


class Claims:
    """Nodes that say who they are."""

    poll = 0.0

    def __init__(self, **nodes):
        self.told = {int(name.removeprefix("n")): head for name, head in nodes.items()}

    def nodes(self):
        return frozenset(self.told)

    def send(self, parcels):
        return {node: f"t{node}" for node in parcels}

    def collect(self, tickets):
        found = {ticket: self.told[int(ticket.removeprefix("t"))] for ticket in tickets}
        return {ticket: head if isinstance(head, str) else Parcel(head) for ticket, head in found.items()}


def claim(client, key="k", **more):
    return {"client": client, "key": key, "name": f"c{client}", "samples": 4, "data": "{}", "weights": "w", **more}


def admitted(post, store=None, weights=None):
    roster = Roster(post, 3, QUICK, Store(None) if store is None else store)
    if weights:
        roster.expect(weights)
    return roster.refresh()


def test_nodes_become_clients():
    assert admitted(Claims(n7=claim(0), n9=claim(2))) == {0: 7, 2: 9}


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (claim(3), "it says it is client 3, but the clients are 0 to 2"),
        (claim("0"), "it says client='0'"),
        (claim(0, samples=0), "client 0 says it has 0 training samples"),
        (claim(0, weights="other"), "client 0 starts from other initial weights than the server"),
        ({"client": 0}, "it says key=None"),
        ({"client": 0, "problem": "no data here"}, "no data here"),
        ("it crashed", "it crashed"),
    ],
)
def test_a_claim_that_cannot_be_is_refused_with_a_reason(head, reason, caplog):
    assert admitted(Claims(n7=head), weights="w") == {}
    assert f"node 7 was not admitted: {reason}" in caplog.text


def test_another_clients_number_is_refused(caplog):
    store = Store(None)
    assert admitted(Claims(n7=claim(0, key="mine")), store) == {0: 7}
    assert admitted(Claims(n7=claim(0, key="mine"), n8=claim(0, key="guessed")), store) == {0: 7}
    assert "node 8 was not admitted: it says it is client 0, which is another node with another key" in caplog.text


def test_the_key_brings_a_client_back_from_another_node():
    store = Store(None)
    admitted(Claims(n7=claim(0, key="mine")), store)
    assert admitted(Claims(n8=claim(0, key="mine")), store) == {0: 8}


def test_a_copy_of_a_client_is_refused_while_the_client_is_connected(caplog):
    store = Store(None)
    admitted(Claims(n7=claim(0, key="mine")), store)
    assert admitted(Claims(n7=claim(0, key="mine"), n8=claim(0, key="mine")), store) == {0: 7}
    assert "node 8 was not admitted: it says it is client 0, which is another node that is still" in caplog.text


def test_an_authenticated_node_may_lose_its_key():
    store = Store(None)
    admitted(Claims(n7=claim(0, key="mine")), store)
    assert admitted(Claims(n7=claim(0, key="new")), store) == {0: 7}


def test_a_refused_node_is_not_asked_at_once_again():
    post = Claims(n7=claim(5))
    roster = Roster(post, 3, QUICK, Store(None))
    roster.refresh()
    post.told[7] = claim(1)
    assert roster.refresh() == {}


def test_weights_are_checked_when_they_become_known(caplog):
    roster = Roster(Claims(n7=claim(0), n8=claim(1, weights="other")), 3, QUICK, Store(None))
    roster.refresh()
    roster.expect("w")
    assert roster.refresh() == {0: 7}


def test_waiting_ends_when_enough_are_there():
    roster = Roster(Claims(n7=claim(0), n8=claim(1)), 3, QUICK, Store(None))
    assert roster.gather(range(3), 2, patience=0.01) == {0: 7, 1: 8}
    with pytest.raises(IdiolectError, match="only 2 of 3 clients are connected and 3 are needed"):
        roster.gather(range(3), 3, patience=0.01)


def test_a_client_that_joins_late_takes_part():
    class Late(Loopback):
        late = True

        def nodes(self):
            return super().nodes() - ({101} if self.late else set())

    engine = LoopbackEngine(tiny_plan("fedavg"), QUICK, Late)
    assert 1 not in engine.roster.refresh()
    engine.roster.post.late = False
    assert engine.roster.refresh()[1] == 101
