"""FedHKD: FedAvg whose clients share mean features and mean soft predictions of each class."""

import pytest
import torch

from idiolect import Batch
from idiolect.contract import tree
from idiolect.contract.parts.class_statistics import global_of
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import aggregate, first_server
from idiolect.methods.fedhkd import FEATURES, SOFT
from idiolect.testing import (
    check_bad_options,
    check_regression_refused,
    check_wrappers,
    play,
    play_params,
    tiny_plan,
)
from idiolect.testing.scalar import (
    make_upload,
    numeric_gradient,
    personal_model,
    start_training,
    to_double,
    train_client,
)


def start_with_knowledge(plan):
    """Client 0's context and working slots in double precision, with knowledge of the classes 0 and 2."""
    server, count = first_server(plan.server(0)), torch.tensor([4.0, 0.0, 1.0])
    features = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    server[FEATURES] = {"mean": features, "count": count}
    server[SOFT] = {"mean": torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 0.0], [0.1, 0.0, 0.9]]), "count": count}
    ctx, work = start_training(plan, server)
    return ctx, to_double(work)


def send(mean, count):
    """An upload of knowledge of one class, in one number."""
    knowledge = {"mean": torch.tensor([[mean]]), "count": torch.tensor([count])}
    return make_upload({FEATURES: knowledge, SOFT: knowledge})


# -- knowledge ---------------------------------------------------------------------------------------------


def test_the_hand_worked_means():
    """1 and 3 samples of a class with the means 2 and 6: (2 + 18) / 4 = 5. They are averaged, not overwritten."""
    plan = tiny_plan("fedhkd")
    server = {"params": {}, "buffers": {}}
    server |= {slot: {"mean": torch.zeros(1, 1), "count": torch.zeros(1)} for slot in (FEATURES, SOFT)}
    after = aggregate(plan.server(0), server, {0: send(2.0, 1.0), 1: send(6.0, 3.0)})
    assert after[FEATURES]["mean"].item() == after[SOFT]["mean"].item() == 5.0
    absent = aggregate(plan.server(1), after, {0: send(9.0, 0.0)})
    assert absent[FEATURES]["mean"].item() == 5.0
    assert absent[FEATURES]["count"].item() == 4.0


def test_clients_send_the_means_of_their_trained_model_and_nothing_of_absent_classes():
    plan = tiny_plan("fedhkd(sigma=0)")
    upload = train_client(plan, 2).upload
    x, y = plan.split(2, "train")
    out = plan.tasks[0].forward(upload.slots["params"], {}, x)
    assert y.unique().tolist() == [1]
    for slot, values in ((FEATURES, out.features), (SOFT, (out.outputs / 0.5).softmax(1))):
        assert torch.allclose(upload.slots[slot]["mean"][1], values.mean(0), atol=1e-6)
        assert upload.slots[slot]["count"].tolist() == [0.0, 6.0, 0.0]
        assert not upload.slots[slot]["mean"][[0, 2]].any()


def test_noise_is_on_the_features_alone_has_its_deviation_and_differs_between_clients():
    quiet, loud = (tiny_plan(f"fedhkd(sigma={sigma})") for sigma in (0, 2))
    found = []
    for index in (0, 1):
        a, b = train_client(quiet, index).upload, train_client(loud, index).upload
        assert torch.equal(a.slots[SOFT]["mean"], b.slots[SOFT]["mean"])
        assert torch.equal(b.slots[FEATURES]["mean"], train_client(loud, index).upload.slots[FEATURES]["mean"])
        found.append(b.slots[FEATURES]["mean"] - a.slots[FEATURES]["mean"])
    assert not torch.allclose(found[0][0], found[1][0])
    assert 1.2 < torch.stack(found).std().item() < 3.0


def test_rare_classes_are_not_sent_if_a_share_is_asked_for():
    """Client 0 has 14 samples; half of them is 7."""
    upload = train_client(tiny_plan("fedhkd(min_share=0.5)")).upload
    counts = torch.bincount(tiny_plan("fedhkd").split(0, "train")[1], minlength=3).float()
    assert upload.slots[FEATURES]["count"].tolist() == [n if n >= 7 else 0.0 for n in counts.tolist()]
    assert upload.slots[FEATURES]["count"].sum() < 14


# -- the loss ----------------------------------------------------------------------------------------------


def test_the_gradient_by_finite_differences():
    """Padding has no weight; the class 1, of which nothing is known, pulls nothing."""
    plan = tiny_plan("fedhkd(lam=0.7, gamma=0.4)", lr=1.0)
    ctx, work = start_with_knowledge(plan)
    x, y = plan.split(0, "train")
    weight = torch.tensor([1.0, 1, 1, 1, 1, 1, 0]).double()
    batch = Batch(x[:7].double(), y[:7], weight)
    assert 1 in batch.y[:6]

    def value(params):
        out = ctx.task.forward(params, {}, batch.x)
        heads, goal = work[global_of(FEATURES)]["mean"], work[global_of(SOFT)]["mean"]
        chance = ((heads @ params["4.weight"].T + params["4.bias"]) / 0.5).softmax(1)
        divergence = torch.where(goal > 0, goal * (goal.clamp_min(1e-300) / chance).log(), 0.0).sum(1)[[0, 2]].mean()
        off = (out.features - heads[batch.y]).square().mean(1) * (batch.y != 1)
        return float(ctx.task.score(out.outputs, batch) + 0.7 * divergence + 0.4 * (off * weight).sum() / 6)

    after = ctx.phase.step(ctx, work, batch)
    assert after["log"]["loss"].item() / 6 == pytest.approx(value(work["params"]))
    for name, gradient in numeric_gradient(value, work["params"]).items():
        assert torch.allclose(work["params"][name] - after["params"][name], gradient, atol=1e-6), name


def test_the_first_round_is_fedavgs_since_nothing_is_known():
    first, plain = (play(tiny_plan(method, rounds=1)).server["params"] for method in ("fedhkd", "fedavg"))
    assert all(torch.equal(leaf, plain[n]) for n, leaf in first.items())


@pytest.mark.parametrize("option", ["lam", "gamma", "sigma"])
def test_the_defaults_act(option):
    a, b = (play(tiny_plan(text)).server["params"] for text in ("fedhkd", f"fedhkd({option}=0)"))
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


# -- prediction, options, company ----------------------------------------------------------------------------


def test_clients_predict_with_the_global_model_and_the_personal_one_is_measured_right_after_training():
    plan = tiny_plan("fedhkd", after_local=True)
    server = first_server(plan.server(1))
    server["params"] = tree.map(lambda leaf: leaf + 1, server["params"])
    _, model = personal_model(plan, server, index=3, round=1)
    assert all(torch.equal(leaf, server["params"][n]) for n, leaf in model["params"].items())
    assert "after_local" in {row[3] for row in play(plan).rows}


def test_an_unseen_client_fine_tunes_the_global_model():
    plan = tiny_plan("fedhkd", unseen=1)
    ctx, model = personal_model(plan, index=5, round=2)
    tuned = adapt_model(plan, ctx, model, unseen=True)
    assert not torch.equal(tuned["params"]["0.weight"], model["params"]["0.weight"])


def test_bad_options_are_named():
    check_bad_options("fedhkd", "lam=-1", "gamma=-1", "temperature=0", "sigma=-1", "min_share=2")


def test_a_task_without_classes_is_refused():
    check_regression_refused("fedhkd", "one class per sample")


def test_wrappers_wrap_it():
    check_wrappers("fedhkd")


def test_a_client_predicts_with_its_model_as_last_trained_or_on_request_with_the_global_one():
    played, plan = play(tiny_plan("fedhkd")), tiny_plan("fedhkd")
    own = play_params(plan)
    assert all(torch.equal(own[0][n], leaf) for n, leaf in played.clients[0]["fedhkd.own"].items())
    common = play_params(tiny_plan("fedhkd(predicts=global)"))
    assert all(torch.equal(common[0][n], leaf) for n, leaf in played.server["params"].items())
