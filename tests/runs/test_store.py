"""A round is committed whole or not at all, and the selected round's state is kept beside the newest."""

import sqlite3

import pytest
import torch

from idiolect.core.errors import RunFolderError
from idiolect.runs.store import Store


def slots(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"own": {"w": torch.tensor([value])}}


def own(store: Store, client: int, at: int | None = None) -> float | None:
    state = store.clients([client], at)[client]
    return None if state is None else state["own"]["w"].item()


def test_a_client_that_never_trained_has_no_state():
    assert own(Store(None), 3) is None


def test_empty_slots_are_a_state_too():
    store = Store(None)
    store.commit(0, {}, {3: {}}, [], {})
    assert store.clients([3]) == {3: {}}


def test_the_selected_rounds_state_is_kept_beside_the_newest():
    store = Store(None)
    for round in range(5):
        facts = {"selected": round} if round in (0, 2) else {}
        clients = {7: slots(round)} if round != 2 else {}
        store.commit(round, {"params": {"w": torch.tensor([float(round)])}}, clients, [], facts)
    assert own(store, 7) == 4.0
    assert own(store, 7, at=2) == 1.0
    assert store.server(at=2)["params"]["w"].item() == 2.0
    assert store.server()["params"]["w"].item() == 4.0
    assert store._db.query("SELECT count(*) FROM entries WHERE owner=7") == [(2,)]


def test_an_interrupted_commit_leaves_the_round_before(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.commit(0, {}, {1: slots(1.0)}, [], {"next_round": 1})
    bad_rows = [(1, 1, "seen", "personal", "test", "accuracy", object(), 1)]
    with pytest.raises(RunFolderError, match="could not be saved"):
        store.commit(1, {}, {1: slots(2.0)}, bad_rows, {"next_round": 2})
    assert own(Store(tmp_path / "s.sqlite"), 1) == 1.0
    assert store.fact("next_round") == 1


def test_a_foreign_or_damaged_file_is_refused(tmp_path):
    (tmp_path / "text.sqlite").write_text("this is no database, but long enough to look at" * 30)
    with pytest.raises(RunFolderError, match="cannot be used"):
        Store(tmp_path / "text.sqlite")
    db = sqlite3.connect(tmp_path / "other.sqlite")
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(RunFolderError, match="version 0"):
        Store(tmp_path / "other.sqlite")


def test_a_damaged_entry_is_named(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.commit(0, {}, {1: slots(1.0)}, [], {})
    store._db.connection.execute("UPDATE state SET data=x'00'")
    with pytest.raises(RunFolderError, match="damaged"):
        Store(tmp_path / "s.sqlite").clients([1])


@pytest.mark.parametrize("cache_mb", [0, 1, 64])
def test_the_cache_changes_nothing_and_is_bounded(tmp_path, cache_mb):
    store = Store(tmp_path / "s.sqlite", cache_mb=cache_mb)
    large = torch.zeros(100_000)
    for round in range(3):
        store.commit(round, {}, {i: {"own": {"w": large + round + i}} for i in range(6)}, [], {"selected": 0})
        assert store._cache.size == sum(map(len, store._cache.values.values())) <= cache_mb << 20
    held = store.clients([5, 0, 9, 3])
    assert list(held) == [5, 0, 9, 3]
    assert held[9] is None
    assert [held[i]["own"]["w"][0].item() for i in (5, 0, 3)] == [7.0, 2.0, 5.0]
    assert store.clients([5], at=1)[5]["own"]["w"][0].item() == 5.0


def test_a_commit_that_failed_is_not_in_the_cache(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.commit(0, {}, {1: slots(1.0)}, [], {})
    with pytest.raises(RunFolderError, match="could not be saved"):
        store.commit(1, {}, {1: slots(2.0)}, [(1, 1, "seen", "personal", "test", "accuracy", object(), 1)], {})
    assert own(store, 1) == 1.0
