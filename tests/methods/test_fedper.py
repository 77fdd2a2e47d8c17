"""FedPer and FedRep: a private head on a shared body."""

import pytest
import torch

from idiolect import run
from idiolect.contract import methods
from idiolect.core import codec
from idiolect.core.errors import ModelError
from idiolect.engines.slots import aggregate, first_server
from idiolect.testing import play, play_params, tiny_plan
from idiolect.testing.scalar import (
    Product,
    download_of,
    half_squared_error,
    make_upload,
    personal_model,
    scalar_federation,
    train_client,
)


def test_the_body_is_common_and_the_heads_differ():
    for method in ("fedper", "fedrep(head_epochs=1)"):
        own = play_params(tiny_plan(method))
        assert torch.equal(own[0]["0.weight"], own[1]["0.weight"])
        assert not torch.equal(own[0]["4.weight"], own[1]["4.weight"])


def test_the_head_never_leaves_a_client_and_costs_no_bytes():
    plan = tiny_plan("fedper")
    server = first_server(plan.server(0))
    download, outcome = download_of(plan), train_client(plan)
    head = {"4.weight", "4.bias"}
    assert not head & set(download["params"])
    assert not head & set(outcome.upload.slots["params"])
    whole = sum(leaf.numel() for leaf in server["params"].values())
    assert codec.size(download) == 4 * (whole - 5 * 3 - 3)


def test_the_hand_worked_example():
    """Equal clients train body 0 to 2 and to 4 and heads to 5 and to 7: both then hold body 3, and heads 5 and 7."""
    plan = tiny_plan("fedper")
    uploads = {i: make_upload({"params": {"0.weight": torch.tensor(v)}}, 9.0) for i, v in enumerate([2.0, 4.0])}
    before = {"params": {"0.weight": torch.tensor(0.0), "4.weight": torch.tensor(1.0)}, "buffers": {}}
    after = aggregate(plan.server(0), before, uploads)
    assert after["params"]["0.weight"].item() == 3.0
    assert after["params"]["4.weight"].item() == 1.0
    for head in (5.0, 7.0):
        _, model = personal_model(plan, after, {"private": {"4.weight": torch.tensor(head)}})
        assert (model["params"]["0.weight"].item(), model["params"]["4.weight"].item()) == (3.0, head)


def test_fedrep_trains_the_head_then_the_body():
    plan = tiny_plan("fedrep(head_epochs=2, body_epochs=0)")
    download, outcome = download_of(plan), train_client(plan)
    assert all(torch.equal(leaf, download["params"][n]) for n, leaf in outcome.upload.slots["params"].items())
    assert not torch.equal(outcome.state["private"]["4.weight"], plan.tasks[0].net.params["4.weight"])


def test_fedrep_hand_worked():
    """Loss (b h - 1)^2 / 2 at b = 2, h = 0, rate 0.1: the head moves to 0.2, then the body to 2.012."""
    options = {"loss": half_squared_error, "rounds": 1, "lr": 0.1}
    model = run("fedrep(head_epochs=1)", scalar_federation(1.0), model=Product(body=2.0, head=0.0), **options).model(0)
    assert model.head.weight.item() == pytest.approx(0.2)
    assert model.body.weight.item() == pytest.approx(2.012)


def test_statistics_of_a_frozen_body_stay_put():
    plan = tiny_plan("fedrep(head_epochs=2, body_epochs=0)", norm=True)
    played = play(plan)
    assert torch.equal(played.server["buffers"]["1.running_mean"], plan.tasks[0].net.buffers["1.running_mean"])


def test_more_private_layers_than_layers_is_an_error_before_anything_runs():
    with pytest.raises(ModelError, match="3 layers"):
        methods.build("fedper(layers=4)").check(tiny_plan("fedavg").tasks[0])


def test_an_unseen_client_trains_only_its_head():
    plan = tiny_plan("fedper", unseen=1)
    (phase,) = plan.method.onboard(plan.context(5, 0))
    assert phase.part == {"4.weight", "4.bias"}
