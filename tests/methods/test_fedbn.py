"""FedBN: everything is averaged but what belongs to normalisation, found by the type of the module."""

import warnings

import pytest
import torch
from torch import nn

from idiolect import Task
from idiolect.contract import methods
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import aggregate, first_client, first_server, keep_and_send
from idiolect.testing import play, play_params, require_equal, tiny_plan
from idiolect.testing.scalar import download_of, personal_model, train_client

pytestmark = pytest.mark.filterwarnings("ignore:fedbn. the model has no normalisation")
NORM = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_scale_shift_and_statistics_never_cross_the_wire():
    plan = tiny_plan("fedbn", norm=True)
    download, outcome = download_of(plan), train_client(plan)
    for message in (download, outcome.upload.slots):
        assert not NORM & {name for leaves in message.values() for name in leaves}
        assert "0.weight" in message["params"]
    assert set(outcome.state["private"]) == NORM


def test_clients_share_all_layers_but_normalisation():
    own = play_params(tiny_plan("fedbn", norm=True))
    for name in own[0]:
        assert torch.equal(own[0][name], own[1][name]) == (name not in NORM)


def test_it_is_fedavg_under_the_runs_own_policy_of_local_normalisation():
    policy = {"norm": True, "norm_stats": "local", "norm_affine": "local"}
    require_equal(play(tiny_plan("fedbn", norm=True)), play(tiny_plan("fedavg", **policy)), "two ways to say it")


def test_the_default_acts():
    own, plain = play_params(tiny_plan("fedbn", norm=True)), play_params(tiny_plan("fedavg", norm=True))
    assert not torch.equal(own[0]["0.weight"], plain[0]["0.weight"])
    assert not torch.equal(own[0]["1.weight"], plain[0]["1.weight"])


def test_normalisation_is_found_whatever_it_is_called():
    """The normalisation of a residual shortcut is called `downsample.1`; a layer called `bn` may be none."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn_like = nn.Linear(4, 4)
            self.downsample = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.downsample(self.bn_like(x)))

    task = Task(Net(), (torch.randn(2, 4), torch.tensor([0, 1])), classes=3)
    private = methods.build("fedbn").private_names(task)
    assert private == {f"downsample.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")} | {
        "downsample.1.num_batches_tracked",
        "downsample.2.weight",
        "downsample.2.bias",
    }


def test_the_hand_worked_example():
    """Weights 2 and 4 average to 3 at both; scales 5 and 7 stay where they are."""
    plan = tiny_plan("fedbn", norm=True)
    ctx = plan.context(0, 0)
    full = ctx.task.initial
    uploads, states = {}, {}
    for i, (weight, scale) in enumerate([(2.0, 5.0), (4.0, 7.0)]):
        work = {
            "params": {n: torch.full_like(leaf, scale if n in NORM else weight) for n, leaf in full["params"].items()},
            "buffers": full["buffers"],
        }
        states[i], uploads[i] = keep_and_send(ctx, first_client(ctx), work)
    server = aggregate(plan.server(0), first_server(plan.server(0)), uploads)
    for i, scale in enumerate([5.0, 7.0]):
        model = personal_model(plan, server, states[i])[1]["params"]
        assert (model["0.weight"].unique().item(), model["1.weight"].unique().item()) == (3.0, scale)


def test_a_model_without_normalisation_is_warned_about_and_is_fedavg():
    with pytest.warns(UserWarning, match="fedbn is fedavg"):
        plan = tiny_plan("fedbn")
    require_equal(play(plan), play(tiny_plan("fedavg")), "nothing to keep")


def test_a_model_with_normalisation_is_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_plan("fedbn", norm=True)


def test_a_client_that_never_trained_has_the_initial_normalisation():
    plan = tiny_plan("fedbn", norm=True)
    played = play(plan)
    _, model = personal_model(plan, played.server, round=2)
    assert torch.equal(model["params"]["1.weight"], plan.tasks[0].net.params["1.weight"])
    assert torch.equal(model["params"]["0.weight"], played.server["params"]["0.weight"])


def test_an_unseen_client_fits_its_normalisation_only():
    plan = tiny_plan("fedbn", norm=True, unseen=1)
    ctx, model = personal_model(plan, index=5)
    tuned = adapt_model(plan, ctx, model, unseen=True)
    moved = {n for s in ("params", "buffers") for n, leaf in model[s].items() if not torch.equal(leaf, tuned[s][n])}
    assert moved == NORM


def test_an_unseen_client_measures_its_statistics_once_before_it_fits():
    """The mean of what its batches have; a model without running statistics has nothing to measure."""
    plan = tiny_plan("fedbn", norm=True, unseen=1)
    stats, fit = plan.method.onboard(plan.context(5, 0))
    assert (stats.name, stats.epochs, stats.slots) == ("stats", 1, ())
    assert (fit.name, fit.part) == ("onboard", frozenset({"1.weight", "1.bias"}))
    plain = tiny_plan("fedbn", unseen=1)
    assert [phase.name for phase in plain.method.onboard(plain.context(5, 0))] == ["onboard"]


@pytest.mark.parametrize("outer", ["fedlag(fedbn, warmup=0, k=1)", "flayer(fedbn)", "finetune(fedbn)"])
def test_wrappers_wrap_it(outer):
    played = play(tiny_plan(outer, norm=True))
    scales = [state["private"]["1.weight"] for state in played.clients.values() if state is not None]
    assert len(scales) > 1
    assert not torch.equal(scales[0], scales[1])
