"""One upload cannot spoil the model: not with infinite numbers, nor with finite ones that are out of all proportion."""

import math
from dataclasses import replace

import pytest
import torch

from idiolect.contract import Upload
from idiolect.engines.loop import Loop
from idiolect.engines.slots import aggregate
from idiolect.engines.uploads import measure_norms
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.screening import aggregate_finite, find_outsized
from idiolect.runs.store import Store
from idiolect.testing import play, tiny_plan


class Hostile(Loop):
    """Client 0 sends a large number in the first round."""

    value = 3e38

    def train(self, round, states, download):
        for index, outcome in super().train(round, states, download):
            if (index, round) == (0, 0):
                huge = {
                    name: torch.full_like(leaf, self.value) for name, leaf in outcome.upload.slots["params"].items()
                }
                upload = replace(outcome.upload, slots={**outcome.upload.slots, "params": huge})
                outcome = replace(outcome, upload=upload)
            yield index, outcome


@pytest.mark.parametrize("value", [3e38, 1e4])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "scaffold"])
def test_one_huge_upload_is_refused_and_honest_clients_go_on(method, value, monkeypatch, caplog):
    monkeypatch.setattr(Hostile, "value", value)
    plan, store = tiny_plan(method), Store(None)
    RoundLoop(plan, Hostile(plan), store).run()
    assert store.facts.refused == 1
    assert "left out client" in caplog.text
    assert "params has a norm of" in caplog.text
    assert all(float(leaf.abs().max()) < 1e3 for leaf in store.server()["params"].values())


class Broken(Loop):
    """An engine whose clients all send nothing finite after the first round."""

    def train(self, round, clients, download):
        for index, outcome in super().train(round, clients, download):
            if round:
                broken = {name: leaf * math.nan for name, leaf in outcome.upload.slots["params"].items()}
                upload = replace(outcome.upload, slots={**outcome.upload.slots, "params": broken})
                outcome = replace(outcome, upload=upload)
            yield index, outcome


def test_uploads_that_are_left_out_in_every_round_are_said_once_per_round_and_not_for_ever(caplog):
    plan = tiny_plan("fedavg", rounds=20)
    store = Store(None)
    RoundLoop(plan, Broken(plan), store).run()
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    clients = len(plan.data.seen)
    assert store.facts.refused == 19 * clients
    assert len(said) == 11
    assert f"and {clients - 1} others: params" in said[0]
    assert said[-1] == "round 12: uploads are left out again; from here on they are counted only"


def test_nothing_is_refused_of_honest_clients():
    plan = tiny_plan("fedavg")
    store = Store(None)
    RoundLoop(plan, Loop(plan), store).run()
    assert store.facts.refused == 0
    assert all(torch.equal(leaf, play(plan).server["params"][n]) for n, leaf in store.server()["params"].items())


def test_one_of_two_cannot_raise_the_median_and_one_alone_is_compared_with_the_server():
    server = {"params": {"w": torch.ones(4)}}
    assert set(find_outsized({0: {"params": 1.0}, 1: {"params": 1e9}}, server)) == {1}
    assert set(find_outsized({1: {"params": 1e9}}, server)) == {1}
    assert not find_outsized({0: {"params": 1e9}, 1: {"params": 2e9}, 2: {"params": 3e9}}, server)


def test_a_model_must_be_near_those_of_most_and_numbers_such_as_sample_counts_need_not():
    lengths = {0: 1.0, 1: 2.0, 2: 1e3}
    assert set(find_outsized({i: {"params": each} for i, each in lengths.items()}, {})) == {2}
    assert not find_outsized({i: {"weight": each} for i, each in lengths.items()}, {})
    assert not find_outsized({i: {"params": lengths[i]} for i in (0, 2)}, {}), "two do not tell which of them is right"


def test_uploads_are_left_out_until_the_aggregate_is_finite():
    plan = tiny_plan("fedavg")
    ctx = plan.server(0)
    initial = plan.tasks[0].net.params

    def upload(value):
        params = {name: torch.full_like(leaf, value) for name, leaf in initial.items()}
        return Upload({"params": params, "buffers": {}, "weight": {"samples": torch.tensor(1.0)}}, {})

    server = {"params": dict(initial), "buffers": {}}
    sent = {0: upload(1.0), 1: upload(float("inf"))}
    norms = {i: measure_norms(each) for i, each in sent.items()}
    after, spoiling = aggregate_finite(server, norms, lambda left: aggregate(ctx, server, {i: sent[i] for i in left}))
    assert set(spoiling) == {1}
    assert all(bool(torch.isfinite(leaf).all()) for leaf in after["params"].values())
