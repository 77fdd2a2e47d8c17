"""The facts of a run: typed, with defaults, and stored as they always were."""

import sqlite3
from dataclasses import replace

import pytest

import idiolect
from idiolect.core.errors import RunFolderError
from idiolect.runs.facts import Cost, RunFacts
from idiolect.runs.store import Store


def test_a_store_without_facts_has_the_defaults():
    assert Store(None).facts == RunFacts()
    assert Store(None).cost(1) is None


def test_facts_come_back_as_they_were_recorded(tmp_path):
    facts = RunFacts(
        "loop", {"loop": 0.5}, 3, 2, 0.75, "a", 10, 20, 30, 4, 11, 12, {"not finite": 5}, 6, 7, 8, 7.5, 8.5, 9.5
    )
    store = Store(tmp_path / "s.sqlite")
    store.commit(2, {}, {}, [], facts)
    assert Store(tmp_path / "s.sqlite").facts == facts
    assert store.cost(3) == Cost(10, 20, 7.5)


def test_what_is_known_before_the_first_round_is_recorded_without_one():
    store = Store(None)
    store.record({"engine": "loop", "identity": {"data": "a"}})
    assert (store.facts.engine, store.facts.next_round, store.visited_clients()) == ("loop", None, frozenset())


def test_every_fact_has_its_own_entry_as_in_folders_written_before(tmp_path):
    idiolect.run("fedavg", clients=3, rounds=2, model="linear", out=tmp_path / "r")
    with sqlite3.connect(tmp_path / "r" / "state.sqlite") as db:
        stored = dict(db.execute("SELECT key, value FROM facts"))
    assert stored["next_round"] == "2"
    assert {"identity", "engine", "selected", "selected_score", "bytes_up", "steps", "cost 1", "cost 2"} <= set(stored)


def test_a_round_adds_to_the_facts_before(tmp_path):
    store = Store(None)
    store.commit(0, {}, {}, [], RunFacts(next_round=1, selected=0, steps=3))
    store.commit(1, {}, {}, [], replace(store.facts, next_round=2, steps=7))
    assert store.facts == RunFacts(next_round=2, selected=0, steps=7)


def test_damaged_facts_are_named():
    store = Store(None)
    store._db.execute("INSERT INTO facts VALUES ('steps', '{')")
    with pytest.raises(RunFolderError, match="damaged"):
        _ = store.facts
