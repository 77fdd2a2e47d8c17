"""FedEM: responsibilities, mixtures of probabilities, and components that are averaged one by one."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Federation, Task, run
from idiolect.contract import methods
from idiolect.core import codec, tree
from idiolect.core.errors import ModelError
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.client_round import train
from idiolect.engines.phases import fresh_optimizer
from idiolect.engines.slots import aggregate, first_client, first_server, gather, sent_names
from idiolect.methods.fedem import mix_outputs, responsibilities, update_mixture
from idiolect.testing import check_bad_options, check_method, check_wrappers_refused, play, play_params, tiny_plan

LOG = {"loss": torch.zeros(()), "samples": torch.zeros(())}


def first_download(plan):
    return plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0)


def first_work(plan):
    """A client's context in the phase of maximisation, and its working slots before training."""
    ctx = plan.context(0, 0)
    work = plan.method.prepare(ctx, gather(ctx, first_client(ctx), first_download(plan)))
    ctx = replace(ctx, phase=plan.method.phases(ctx)[1])
    return ctx, {**work, **fresh_optimizer(ctx, work), "log": LOG}


def model_of(plan, index=0):
    """The context of a client that never trained, and its personal model."""
    ctx = plan.context(index, 0)
    work = gather(ctx, first_client(ctx), first_download(plan), training=False)
    return ctx, plan.method.personal_model(ctx, work)


# -- expectation ------------------------------------------------------------------------------------


def test_the_hand_worked_responsibilities_and_weights():
    """Losses 0 and ln 3 with equal weights: exp(0) : exp(-ln 3) = 3 : 1, so q = 3/4, 1/4; with a second sample of
    losses ln 3 and 0 the weights are (3/4 + 1/4) / 2 = 1/2, without it 3/4."""
    losses = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]])
    even = torch.tensor([0.5, 0.5])
    assert torch.allclose(responsibilities(even, losses), torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
    ctx, mixture = tiny_plan("fedem(components=2)").context(0, 0), {"pi": even, "prior": even, "sum": torch.zeros(2)}
    for weight, pi in (([1.0, 1.0], [0.5, 0.5]), ([1.0, 0.0], [0.75, 0.25])):
        batch = Batch(torch.zeros(2), torch.zeros(2), torch.tensor(weight))
        assert torch.allclose(update_mixture(ctx, mixture, losses, batch)["pi"], torch.tensor(pi))


def test_a_component_with_more_weight_is_more_responsible():
    q = responsibilities(torch.tensor([0.9, 0.1]), torch.zeros(2, 1))
    assert torch.allclose(q.flatten(), torch.tensor([0.9, 0.1]))


def test_a_component_without_weight_stays_without_and_spoils_nothing():
    q = responsibilities(torch.tensor([1.0, 0.0]), torch.zeros(2, 3))
    assert torch.equal(q, torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))


def test_one_pass_uses_the_weights_from_before_it_and_the_next_those_it_found():
    ctx = tiny_plan("fedem(components=2)").context(0, 0)
    batch = Batch(torch.zeros(1), torch.zeros(1), torch.ones(1))
    losses, even = torch.tensor([[0.0], [math.log(3)]]), torch.tensor([0.5, 0.5])
    mixture = {"pi": even, "prior": even, "sum": torch.zeros(2)}
    found = []
    for step in (0, 1, 0):
        mixture = update_mixture(replace(ctx, step=step), mixture, losses, batch)
        found.append(mixture["pi"][0].item())
    assert found == pytest.approx([0.75, 0.75, 0.9])  # 3/4 : 1/4 becomes 9/4 : 1/4


def test_responsibilities_come_from_the_received_components_and_the_old_weights():
    plan = tiny_plan("fedem")
    ctx, work = first_work(plan)
    batch = Batch(*(part[:4] for part in plan.split(0, "train")), torch.ones(4))
    far = {slot: tree.map(lambda leaf: leaf * 3, work[slot]) for slot in plan.method.models}
    before = ctx.phase.step(ctx, work, batch)["params"]
    moved = ctx.phase.step(ctx, {**work, "fedem.1": far["fedem.1"], "fedem.2": far["fedem.2"]}, batch)["params"]
    assert all(torch.equal(leaf, moved[n]) for n, leaf in before.items())
    other = {**work["fedem.mixture"], "pi": torch.tensor([0.9, 0.05, 0.05])}
    again = ctx.phase.step(ctx, {**work, "fedem.mixture": other}, batch)["params"]
    assert all(torch.equal(leaf, again[n]) for n, leaf in before.items())


def test_a_round_sets_the_weights_to_the_mean_responsibility():
    plan = tiny_plan("fedem")
    _, work = first_work(plan)
    x, y = plan.split(0, "train")
    task = plan.tasks[0]
    losses = torch.stack([task.losses(task.forward(work[m], {}, x).outputs, y) for m in plan.method.models])
    state = train(plan, 0, 0, None, first_download(plan)).state
    mean = responsibilities(torch.full((3,), 1 / 3), losses).mean(1)
    assert torch.allclose(state["fedem.mixture"]["pi"], mean, atol=1e-6)


# -- maximisation -----------------------------------------------------------------------------------


def test_each_component_follows_the_finite_difference_of_its_weighed_loss():
    plan = tiny_plan("fedem(components=2)", lr=1.0)
    task = plan.tasks[0]
    ctx, work = first_work(plan)
    x, y = plan.split(0, "train")
    batch = Batch(x[:4].double(), y[:4], torch.tensor([1.0, 1.0, 1.0, 0.0]).double())
    work = {slot: tree.map(lambda leaf: leaf.double(), each) for slot, each in work.items()}
    work["fedem.mixture"]["prior"] = torch.tensor([0.2, 0.8]).double()
    task.net.module.double()
    after = ctx.phase.step(ctx, work, batch)
    losses = torch.stack([task.losses(task.forward(work[m], {}, batch.x).outputs, y[:4]) for m in plan.method.models])
    q = responsibilities(work["fedem.mixture"]["prior"], losses)
    for model, shares in zip(plan.method.models, q, strict=True):

        def objective(params, shares=shares):
            return (task.losses(task.forward(params, {}, batch.x).outputs, batch.y) * shares * batch.weight).sum() / 3

        for name, leaf in work[model].items():
            nudge = torch.zeros_like(leaf).reshape(-1)
            nudge[0] = 1e-6
            up, down = ({**work[model], name: leaf + s * nudge.reshape(leaf.shape)} for s in (1, -1))
            derivative = (objective(up) - objective(down)) / 2e-6
            assert torch.isclose((leaf - after[model][name]).reshape(-1)[0], derivative, rtol=1e-5, atol=1e-8)


def test_the_training_log_counts_every_sample_once():
    plan = tiny_plan("fedem")
    ctx, work = first_work(plan)
    batch = Batch(*(part[:4] for part in plan.split(0, "train")), torch.ones(4))
    assert ctx.phase.step(ctx, work, batch)["log"]["samples"] == 4.0


def test_every_component_is_the_mean_of_the_clients():
    plan = tiny_plan("fedem(components=2)")
    ctx, server = plan.server(0), first_server(plan.server(0))
    sent = {i: train(plan, i, 0, None, plan.method.download(ctx, server, (i,)).of(i)).upload for i in (0, 1)}
    after = aggregate(ctx, server, sent)
    for model in ("params", "fedem.1"):
        mean = tree.mean([sent[i].slots[model] for i in (0, 1)], [14, 9])
        assert all(torch.equal(leaf, after[model][n]) for n, leaf in mean.items())


def test_with_one_component_it_is_fedavg_to_the_bit():
    one, plain = (
        play_params(tiny_plan("fedem(components=1)", norm=True)),
        play_params(tiny_plan("fedavg", norm=True)),
    )
    assert all(torch.equal(leaf, plain[i][n]) for i, each in one.items() for n, leaf in each.items())


# -- where components start ---------------------------------------------------------------------------


def test_components_start_apart_but_with_the_scale_of_the_model():
    plan = tiny_plan("fedem", norm=True)
    server, initial = first_server(plan.server(0)), plan.tasks[0].net.params
    for model in ("fedem.1", "fedem.2"):
        assert not torch.allclose(server[model]["0.weight"], initial["0.weight"], atol=0.05)
        assert server[model]["0.weight"].std() == pytest.approx(float(initial["0.weight"].std()), rel=0.5)
        assert torch.equal(server[model]["1.weight"], initial["1.weight"])  # normalisation starts at one
    assert not torch.equal(server["fedem.1"]["0.weight"], server["fedem.2"]["0.weight"])
    again = first_server(plan.server(0))
    assert torch.equal(server["fedem.1"]["0.weight"], again["fedem.1"]["0.weight"])


def test_a_small_spread_stays_near_a_pretrained_model():
    plan = tiny_plan("fedem(spread=0.01)")
    start, initial = first_server(plan.server(0))["fedem.1"], plan.tasks[0].net.params
    assert all(torch.allclose(leaf, initial[n], atol=0.05) for n, leaf in start.items())


def test_the_components_come_apart_and_the_default_acts():
    played = play(tiny_plan("fedem", rounds=4))
    weights = torch.stack([state["fedem.mixture"]["pi"] for state in played.clients.values()])
    assert torch.allclose(weights.sum(1), torch.ones(5))
    assert (weights - 1 / 3).abs().max() > 0.02
    assert {row[5] for row in played.rows if row[3] == "state"} == {"pi/0", "pi/1", "pi/2"}


# -- prediction -----------------------------------------------------------------------------------------


def classes_task() -> Task:
    return Task(nn.Linear(2, 3), (torch.zeros(2, 2), torch.tensor([0, 1])), classes=3)


def test_probabilities_are_mixed_not_logits():
    """Weights 3/4 and 1/4, probabilities 0.8 and 0.4 of a class: 0.6 + 0.1 = 0.7."""
    chances = torch.tensor([[[0.8, 0.1, 0.1]], [[0.4, 0.3, 0.3]]])
    shifted = chances.log() + torch.tensor([5.0, -7.0])[:, None, None]  # logits are known up to a constant each
    outputs = mix_outputs(classes_task(), torch.tensor([0.75, 0.25]), shifted)
    assert outputs.exp().flatten().tolist() == pytest.approx([0.7, 0.15, 0.15])
    assert F.cross_entropy(outputs, torch.tensor([0])).item() == pytest.approx(-math.log(0.7))


def test_classes_may_run_along_the_second_or_the_last_axis():
    draw, pi = torch.Generator().manual_seed(0), torch.tensor([0.5, 0.5])
    outputs = torch.randn(2, 4, 3, 5, generator=draw)
    pixels = Task(nn.Conv1d(1, 3, 1), (torch.zeros(2, 1, 5), torch.zeros(2, 5, dtype=torch.long)), classes=3)
    assert torch.allclose(mix_outputs(pixels, pi, outputs).exp().sum(1), torch.ones(4, 5))
    words = Task(nn.Linear(1, 5), (torch.zeros(2, 3, 1), torch.zeros(2, 3, dtype=torch.long)), classes=5)
    assert torch.allclose(mix_outputs(words, pi, outputs).exp().sum(2), torch.ones(4, 3))


def test_a_single_logit_stays_a_logit_of_the_mixed_probability():
    task = Task(nn.Linear(2, 1), (torch.zeros(2, 2), torch.tensor([0.0, 1.0])), loss="bce", classes=2)
    outputs = mix_outputs(task, torch.tensor([0.75, 0.25]), torch.logit(torch.tensor([[[0.8]], [[0.4]]])))
    assert outputs.sigmoid().item() == pytest.approx(0.7)


def test_numbers_are_averaged():
    task = Task(nn.Linear(2, 1), (torch.zeros(2, 2), torch.zeros(2, 1)))
    assert mix_outputs(task, torch.tensor([0.75, 0.25]), torch.tensor([[[4.0]], [[8.0]]])).item() == 5.0


def test_the_exported_model_is_the_mixture():
    draw = torch.Generator().manual_seed(0)
    parts = {split: (torch.randn(8, 4, generator=draw), torch.arange(8) % 2) for split in ("train", "val", "test")}
    result = run("fedem", Federation.from_clients([parts, parts]), rounds=1, engine="loop")
    assert torch.allclose(result.model(0)(torch.randn(5, 4)).exp().sum(1), torch.ones(5), atol=1e-5)


# -- who knows what ---------------------------------------------------------------------------------------


def test_a_client_that_never_trained_has_equal_weights():
    plan = tiny_plan("fedem")
    _, model = model_of(plan)
    assert torch.allclose(model["fedem.mixture"]["pi"], torch.full((3,), 1 / 3))


def test_an_unseen_client_estimates_its_mixture_and_nothing_else():
    plan = tiny_plan("fedem", unseen=1)
    ctx, before = model_of(plan, 5)
    tuned = adapt_model(plan, ctx, before, unseen=True)
    for model in plan.method.models:
        assert all(torch.equal(leaf, tuned[model][n]) for n, leaf in before[model].items())
    x, y = plan.split(5, "train")
    fit = lambda slots: float(ctx.task.score(plan.method.predict(ctx, slots, x), Batch(x, y, torch.ones(len(y)))))  # noqa: E731
    assert fit(tuned) < fit(before)


def test_all_components_are_counted_and_the_mixture_stays_home():
    plan = tiny_plan("fedem(components=4)")
    size = codec.size({"params": plan.tasks[0].net.params})
    upload = train(plan, 0, 0, None, first_download(plan)).upload
    assert codec.size(first_download(plan)) == 4 * size
    assert codec.size(upload.slots) == 4 * size + 4
    assert set(upload.slots) == set(sent_names(plan.method))
    assert not any("mixture" in slot for slot in upload.slots)


def test_each_component_has_its_own_statistics_also_where_they_stay_private():
    shared = play(tiny_plan("fedem", norm=True)).server
    assert not torch.equal(shared["buffers"]["1.running_mean"], shared["fedem.1.buffers"]["1.running_mean"])
    state = play(tiny_plan("fedem", norm=True, norm_stats="local")).clients[0]
    assert not torch.equal(state["private"]["1.running_mean"], state["fedem.1.private"]["1.running_mean"])


# -- errors and composition -----------------------------------------------------------------------------


def test_a_loss_per_batch_is_refused_before_anything_runs():
    task = Task(nn.Linear(2, 3), (torch.zeros(2, 2), torch.tensor([0, 1])), loss=nn.CrossEntropyLoss(), classes=3)
    with pytest.raises(ModelError, match="one value per sample"):
        methods.build("fedem").check(task)


def test_bad_options():
    check_bad_options("fedem", "components=0", "spread=0", "spread=2", "passes=0")


def test_wrappers_that_act_on_one_model_are_refused():
    check_wrappers_refused("fedem", "several component models")


def test_fine_tuning_trains_all_components():
    plan = tiny_plan("finetune(fedem)")
    ctx, before = model_of(plan)
    tuned = adapt_model(plan, ctx, before, unseen=False)
    assert all(not torch.equal(before[m]["0.weight"], tuned[m]["0.weight"]) for m in plan.method.inner.models)


def test_fine_tuning_runs_with_normalisation_and_momentum():
    check_method("finetune(fedem)", ["messages", "batchnorm", "momentum"])
