"""The point `global`: the shared model itself, scored on every client's data, where there is one."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

import idiolect
from idiolect.contract.method import methods
from idiolect.engines import engines
from idiolect.testing.tiny import play, tiny_plan

WHOLE = {
    "apfl", "ditto", "fedaf", "fedala", "fedavg", "fedbn", "feddbe", "fedexp", "fedfomo", "fedhkd", "fedlag", "fedprox",
    "fedrod", "finetune", "flayer", "l2sgd", "lgmix", "perfedavg", "pfedgate", "pfedme", "scaffold",
}  # fmt: skip
"""The methods with a whole shared model, on a network without normalisation."""
QUICK = {"data": "digits", "clients": 4, "rounds": 2, "engine": "loop", "model": "linear"}


def points(plan):
    return {row[3] for row in play(plan).rows}


def global_losses(played):
    return {row[:3] + row[4:5]: row[6] for row in played.rows if row[3] == "global" and row[5] == "loss"}


@pytest.mark.filterwarnings("ignore:fedbn:UserWarning")
@pytest.mark.parametrize("name", list(methods))
def test_methods_say_whether_there_is_a_whole_shared_model(name):
    assert ("global" in points(tiny_plan(name, rounds=1, eval_global=True))) == (name in WHOLE)


@pytest.mark.parametrize(
    ("method", "has_one"),
    [
        ("fedlag(ditto)", True),
        ("flayer(fedper)", False),
        ("finetune(fedem(components=1))", True),
        ("fedfac", False),
        ("fedper(layers=0)", True),
    ],
)
def test_options_and_what_is_wrapped_decide(method, has_one):
    assert ("global" in points(tiny_plan(method, rounds=1, eval_global=True))) == has_one


def test_local_statistics_leave_no_whole_model():
    assert "global" in points(tiny_plan("fedavg", rounds=1, norm=True, eval_global=True))
    assert "global" not in points(tiny_plan("fedavg", rounds=1, norm=True, norm_stats="local", eval_global=True))


def test_nothing_is_recorded_unless_it_is_asked_for():
    assert "global" not in points(tiny_plan("ditto", rounds=1))


@pytest.mark.parametrize("method", ["ditto", "fedrod", "pfedgate", "flayer(ditto)"])
def test_the_score_is_that_of_the_network_with_the_servers_weights(method):
    """Of no client's gate, head or own model: the loss is recomputed here from the server's slots alone."""
    plan = tiny_plan(method, unseen=1, eval_global=True)
    played = play(plan)
    losses = {where: loss for where, loss in global_losses(played).items() if where[0] == plan.rounds - 1}
    assert {where[1] for where in losses} == set(range(6))
    for (_, index, cohort, split), loss in losses.items():
        x, y = plan.split(index, split)
        outputs = plan.tasks[0].forward(played.server["params"], played.server["buffers"], x).outputs
        assert loss == pytest.approx(nn.functional.cross_entropy(outputs, y).item(), rel=1e-5)
        assert cohort == ("unseen" if index == 5 else "seen")


def test_fedavgs_shared_model_is_its_personal_one():
    plan = tiny_plan("fedavg", eval_global=True)
    for engine in ("loop", "workers(count=1)"):
        rows = play(plan, engines.build(engine).make).rows
        of = {point: [row[:3] + row[4:] for row in rows if row[3] == point] for point in ("personal", "global")}
        assert [row[:5] for row in of["personal"]] == [row[:5] for row in of["global"]]
        assert [row[5] for row in of["global"]] == pytest.approx([row[5] for row in of["personal"]], rel=1e-5)


def test_scoring_it_changes_no_result():
    plan = tiny_plan("ditto", participation=0.6)
    without, with_it = play(plan), play(replace(plan, eval_global=True))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(without.leaves(), with_it.leaves(), strict=True))
    assert without.cost == with_it.cost


def test_metrics_and_summary_hold_it_and_a_run_without_one_says_so(caplog):
    result = idiolect.run("ditto", **QUICK, eval_global=True)
    block = result.summary["global"]["last"]
    rows = result.metrics.filter(point="global", split="test", metric="accuracy", round=2)
    assert block["scored"] == len(rows) == 4
    assert block["mean"] == pytest.approx(rows["value"].mean())
    with caplog.at_level(logging.WARNING):
        none = idiolect.run("local", **QUICK, eval_global=True)
    assert "global" not in none.summary
    assert "nothing is recorded at the point global: local has none here" in caplog.text


def test_an_own_module_with_functional_calls_is_served(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x):
            return nn.functional.linear(x, self.weight)

    data = {"wörd 7": (torch.randn(9, 3), torch.arange(9) % 2), "global": (torch.randn(8, 3), torch.zeros(8).long())}
    result = idiolect.run("ditto", data, model=Own(), rounds=1, eval_global=True)
    again = result.global_model(round=-1)
    assert isinstance(again, Own)
    assert torch.equal(again.weight, result.store.server()["params"]["weight"])
