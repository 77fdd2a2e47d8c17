"""Clients that join, leave, drop out and come too late: what counts, and that neither engine nor resume changes it."""

import math
from collections import Counter

import pytest
import torch

import idiolect
from idiolect.core.errors import InputError, OptionError
from idiolect.engines import engines
from idiolect.engines.presence import DROPPED, LATE, Presence
from idiolect.runs import configure
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.testing import play, require_equal, tiny_plan

AWAY = {0: ((1, math.inf),), 1: ((0, 0), (2, 2)), 3: ((5, 9),)}
FAILING = Presence(AWAY, dropout=0.25, stragglers=0.25)
METHODS = ["scaffold", "fedlag(ditto)", "apple", "fedfac", "pfedhn"]
"""One whose corrections grow old, a wrapped one, one that keeps all models, one with set-up rounds, a hyper-network."""


def failing_plan(method, **changes):
    return tiny_plan(method, presence=FAILING, rounds=4, epochs=1, **changes)


def test_clients_take_part_only_while_they_are_there():
    plan = tiny_plan("fedavg", presence=Presence(AWAY), rounds=3)
    assert [list(plan.participants(round)) for round in range(3)] == [[1, 2, 4], [0, 2, 4], [0, 1, 2, 4]]
    assert list(plan.participants(-1)) == [0, 1, 2, 3, 4]
    assert list(plan.participants(1, {0, 3, 4})) == [0, 4]


def test_a_share_is_of_those_that_are_there():
    plan = tiny_plan("fedavg", presence=Presence(AWAY), participation=0.5, rounds=3)
    assert [len(plan.participants(round)) for round in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("method", METHODS)
def test_a_resume_changes_nothing(method):
    plan, store = failing_plan(method), Store(None)
    whole = play(plan)
    for rounds in (2, 4):
        loop = RoundLoop(plan, engines.build("loop").make(plan), store)
        loop.run(stop=lambda loop=loop, rounds=rounds: loop.first_round >= rounds)
    resumed = play(plan, store=store)
    require_equal(whole, resumed, "resumed")
    assert whole.cost == resumed.cost


@pytest.mark.usefixtures("workers_here")
def test_engines_agree():
    plan = failing_plan("ditto")
    whole = play(plan)
    stacked = play(plan, engines.build("vector(chunk=3, count=1)").make)
    require_equal(whole, stacked, "stacked", 1e-4)
    assert whole.cost == stacked.cost


def test_what_fails_costs_what_it_costs():
    """Who drops out has got the model; who is late has also trained and sent; neither changes model or state."""
    plan, store = failing_plan("ditto"), Store(None)
    played = play(plan, store=store)
    fates = {(i, r): plan.fate(i, r) for r in range(4) for i in plan.participants(r)}
    counts, facts = Counter(fates.values()), store.facts
    assert min(counts[DROPPED], counts[LATE]) > 0
    assert (facts.dropped, facts.late, facts.refused) == (counts[DROPPED], counts[LATE], 0)
    alone = play(tiny_plan("ditto", rounds=1, epochs=1))
    assert facts.bytes_down * 5 == alone.cost["bytes_down"] * len(fates)
    assert facts.bytes_up * 5 == alone.cost["bytes_up"] * (len(fates) - counts[DROPPED])
    arrived = {i for (i, _), fate in fates.items() if not fate}
    assert {i for i, state in played.clients.items() if state is not None} == arrived


def test_a_round_in_which_nobody_is_there_changes_nothing():
    plan = tiny_plan("fedavg", presence=Presence(dict.fromkeys(range(5), ((1, 1),))), rounds=2, epochs=1)
    first = tiny_plan("fedavg", rounds=2, epochs=1)
    store = Store(None)
    loop = RoundLoop(plan, engines.build("loop").make(plan), store)
    loop.run(stop=lambda: loop.first_round >= 1)
    server, initial = store.server()["params"], first.tasks[0].initial["params"]
    assert all(torch.equal(server[name], leaf) for name, leaf in initial.items())
    assert play(plan, store=store).cost["steps"] > 0


def test_settings_say_it_alike_in_text_and_in_python():
    a = configure({"presence": "{ward 3: 1-40, ü: [1-10, 31-]}", "dropout": 0.1})
    b = configure({"presence": {"ward 3": "1-40", "ü": ["1-10", "31-"]}, "dropout": 0.1})
    assert (a, a.hash) == (b, b.hash) != (configure(), configure().hash)


def test_a_run_says_who_failed_and_ends_the_same_after_a_resume(tmp_path):
    settings = {"clients": 4, "rounds": 4, "model": "linear", "engine": "loop", "dropout": 0.3, "stragglers": 0.3}
    result = idiolect.run("fedavg", presence={"client-1": "2-"}, **settings)
    assert result.summary["dropped"] + result.summary["late"] > 0
    assert "dropped out of a round" in result._repr_html_()
    with pytest.raises(InputError, match=r"presence: no client is called '9'"):
        idiolect.run("fedavg", presence={"9": "2-"}, **settings)
    with pytest.raises(InputError, match="in no round is a client there that trains"):
        idiolect.run("fedavg", presence={f"client-{i}": "5-" for i in range(4)}, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"presence": {"a": "x"}}, "presence of 'a': 'x' are no rounds; write them as in 1-40"),
        ({"presence": {"a": "0-3"}}, "count from 1"),
        ({"presence": "3"}, "give rounds by client"),
        ({"dropout": 0.6, "stragglers": 0.6}, "more than 1 together"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        configure(settings)
    with pytest.raises(OptionError, match=r"dropout must lie in \[0, 1\)"):
        configure({"dropout": 1.0})


def test_seeds_of_partition_weights_and_sampling_are_settings_of_their_own():
    def plan_of(**seeds):
        result = idiolect.run("fedavg", clients=6, rounds=1, model="linear", participation=0.5, engine="loop", **seeds)
        plan = result.plan
        weights = plan.tasks[0].initial["params"]["fc1.weight"][0, :3].tolist()
        return plan.data.partition_hash, weights, [tuple(plan.participants(round)) for round in range(9)]

    usual, other = plan_of(seed=1), plan_of(seed=2)
    assert all(a != b for a, b in zip(usual, other, strict=True))
    assert plan_of(seed=2, partition_seed=1, init_seed=1, sampling_seed=1) == usual
    assert plan_of(seed=1, partition_seed=2) == (other[0], usual[1], usual[2])
    assert plan_of(seed=1, init_seed=2) == (usual[0], other[1], usual[2])
    assert plan_of(seed=1, sampling_seed=2) == (usual[0], usual[1], other[2])
