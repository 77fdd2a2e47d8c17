"""What models of finished runs are like: gains of personal layers, clients by their gates."""

import pytest
import torch

import idiolect
from idiolect.contract import Batch
from idiolect.reproductions import model_measures
from idiolect.reproductions.measures import MEASURES, FinishedRun

SETTINGS = {"data": "digits", "engine": "loop", "rounds": 2, "lr": 0.1}


def test_the_gain_of_a_layer_is_what_its_mean_update_costs(tmp_path):
    """With one layer, one epoch and one batch per client h = -lr g, so that the lemma is mean |h - mean h|^2 / lr, and
    the measured gain is the loss under the mean of the trained models minus that under each one's own."""
    small = {"model": "linear", "clients": 4, "batch_size": 1000, "partition": "dirichlet:0.3"}
    run = idiolect.run("fedlag(k=0)", out=tmp_path / "run", **{**SETTINGS, **small, "lr": 0.01})
    (gain,) = model_measures.layer_gains(FinishedRun(tmp_path / "run", run.summary)).values()
    plan, start = run.plan, run.personal_slots(0)["params"]
    task, models = plan.tasks[0], []
    for index in plan.data.seen:
        leaves = {name: leaf.clone().requires_grad_(True) for name, leaf in start.items()}
        grads = torch.autograd.grad(loss_of(plan, task, index, leaves), list(leaves.values()))
        models.append({n: start[n] - 0.01 * g for n, g in zip(leaves, grads, strict=True)})
    mean = {name: torch.stack([model[name] for model in models]).mean(0) for name in start}
    away = [sum(float((model[n] - mean[n]).square().sum()) for n in start) for model in models]
    costs = [
        float(loss_of(plan, task, i, mean) - loss_of(plan, task, i, own))
        for i, own in zip(plan.data.seen, models, strict=True)
    ]
    assert gain.predicted == pytest.approx(sum(away) / len(away) / 0.01, rel=1e-4)
    assert gain.measured == pytest.approx(sum(costs) / len(costs), rel=1e-3)
    assert gain.measured == pytest.approx(gain.predicted, rel=0.2), "to first order they are the same"


def loss_of(plan, task, index, params):
    x, y = plan.split(index, "train")
    return task.loss(params, task.initial["buffers"], Batch(x, y, torch.ones(len(x)))).loss


def test_layers_are_ranked_by_what_was_measured(monkeypatch, tmp_path):
    gains = {name: model_measures.Gain(*pair) for name, pair in {"a": (1, 3), "b": (2, 2), "c": (3, 1)}.items()}
    monkeypatch.setattr(model_measures, "layer_gains", lambda _: gains)
    assert MEASURES["least_layer_gain"](FinishedRun(tmp_path, {})) == 1
    assert MEASURES["gain_agreement"](FinishedRun(tmp_path, {})) == -1


def test_clients_are_joined_by_their_gates_and_compared_by_labels(tmp_path, monkeypatch):
    """Four clients, of which the first two and the last two have the same labels; gates join them so, or crosswise."""
    small = {"model": "mlp(hidden=[8])", "clients": 4, "partition": "shards:1"}
    run = idiolect.run("pfedgate", out=tmp_path / "run", **{**SETTINGS, **small})
    finished = FinishedRun(tmp_path / "run", run.summary)
    labels = iter([[0], [0], [1], [1]] * 2)
    monkeypatch.setattr(model_measures, "label_list", lambda _: next(labels))
    for merges, expected in (([(0, 1), (2, 3)], 1 - 2 / 6), ([(0, 2), (1, 3)], 0 - 2 / 6)):
        rows = torch.tensor([[a, b, 1.0, 2.0] for a, b in merges] + [[4, 5, 2.0, 4.0]]).double().numpy()
        monkeypatch.setattr(model_measures, "cluster_by_ward", lambda _, rows=rows: rows)
        assert MEASURES["labels_of_near_gates"](finished) == pytest.approx(expected)
    assert 0 < MEASURES["sent_share"](finished) <= 1
