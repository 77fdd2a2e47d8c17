"""A round is committed whole or not at all, and the selected round's state is kept beside the newest."""

import sqlite3

import pytest
import torch

from idiolect.errors import RunFolderError
from idiolect.store import Store


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
    assert store._query("SELECT count(*) FROM state WHERE owner=7", ()) == [(2,)]


def test_an_interrupted_commit_leaves_the_round_before(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.commit(0, {}, {1: slots(1.0)}, [], {"next_round": 1})
    bad_rows = [(1, 1, "seen", "view", "test", "accuracy", object(), 1)]
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
    store._db.execute("UPDATE state SET data=x'00'")
    with pytest.raises(RunFolderError, match="damaged"):
        store.clients([1])
