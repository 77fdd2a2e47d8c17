"""FedFomo: others' models are tried on held-out training data, and followed as far as they help."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract import Upload
from idiolect.core import codec, tree
from idiolect.engines.client_round import train
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.fedfomo import move_towards
from idiolect.testing import check_bad_options, check_method, check_wrappers_refused, play, play_params, tiny_plan


def scalar(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([[value]])}


def follow(models: list[float], losses: list[float], base: float, own: float, samples: float = 4.0):
    """The slots that training of the model `weight * x` starts from; losses are per sample, of the base first, then of
    the own model as trained."""
    plan = tiny_plan("fedfomo")
    task = Task(nn.Linear(1, 1, bias=False), (torch.ones(2, 1), torch.ones(2, 1)))
    ctx = replace(plan.context(0, 1, newcomer=False), task=task)
    client = {"own": scalar(own), "own.buffers": {}, "fedfomo.base": scalar(base), "fedfomo.base.buffers": {}}
    sent = {f"fedfomo.model/{k}": scalar(each) for k, each in enumerate(models)}
    work = plan.method.prepare(ctx, gather(ctx, client, {"params": scalar(0.0), "buffers": {}, **sent}))
    tried = {"sum": samples * torch.tensor(losses), "samples": torch.tensor(samples)}
    _, training = plan.method.phases(ctx)
    return training.before(replace(ctx, phase=training), {**work, "fedfomo.losses": tried})


def test_the_hand_worked_example():
    """The last training went from 0 (loss 1) to 1 (loss 0.75); received are 2 (loss 0.5), 4 (loss 0) and -1 (loss 3).
    So a = 0.25/1, 0.5/2, 1/4 and -2/1, W = 1/3, 1/3, 1/3, 0, and training starts from 0 + (1 + 2 + 4) / 3 = 7/3."""
    work = follow([2.0, 4.0, -1.0], [1.0, 0.75, 0.5, 0.0, 3.0], base=0.0, own=1.0)
    assert work["fedfomo.gains"]["a"].tolist() == pytest.approx([0.25, 0.25, -2.0], rel=1e-4)
    assert work["params"]["weight"].item() == pytest.approx(7 / 3, rel=1e-4)
    assert work["fedfomo.base"] == work["params"]


def test_alone_a_client_goes_on_from_its_trained_model_if_that_gained():
    assert follow([], [1.0, 0.75], base=0.0, own=1.0)["params"]["weight"].item() == 1.0


def test_a_client_is_back_where_its_training_started_if_nothing_helps():
    work = follow([2.0, -1.0], [1.0, 1.1, 1.5, 3.0], base=6.0, own=7.0)
    assert work["params"]["weight"].item() == 6.0
    assert (work["fedfomo.gains"]["a"] < 0).all()


def test_round_off_is_no_gain():
    work = follow([2.0, -1.0], [1.0, 1.0, 1.0 - 1e-7, 1.0 + 1e-7], base=7.0, own=8.0)
    assert work["params"]["weight"].item() == 7.0
    assert work["fedfomo.gains"]["a"].tolist() == [0.0, 0.0]


def test_a_client_with_nothing_to_try_models_on_stays_where_it_is():
    work = follow([2.0], [0.0, 0.0, 0.0], base=7.0, own=7.0, samples=0.0)
    assert work["params"]["weight"].item() == 7.0


def test_batch_counters_are_those_of_the_own_model():
    base, own, other = ({"w": torch.tensor(w), "count": torch.tensor(n)} for w, n in ((0.0, 3), (1.0, 4), (2.0, 9)))
    after = move_towards(base, [own, other], torch.tensor([0.0, 1.0]))
    assert (after["w"].item(), after["count"].item()) == (2.0, 4)


def test_a_round_remembers_where_its_training_started():
    """Before the first round there is nothing to follow, so that is the initial model."""
    plan = tiny_plan("fedfomo")
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0)
    state = train(plan, 0, 0, None, download).state
    initial = plan.tasks[0].net.params
    assert all(torch.equal(state["fedfomo.base"][n], leaf) for n, leaf in initial.items())
    assert any(not torch.equal(state["own"][n], leaf) for n, leaf in initial.items())


def test_models_are_tried_on_data_that_nobody_trains_on():
    plan = tiny_plan("fedfomo")
    (held, _), (trained, _) = plan.split(0, "holdout"), plan.split(0, "train")
    assert (len(held), len(trained)) == (3, 11)
    assert not any(torch.equal(a, b) for a in held for b in trained)
    score, training = plan.method.phases(plan.context(0, 0))
    assert (score.data, score.slots, training.data) == ("holdout", (), "train")


def test_losses_of_all_batches_are_added_up():
    plan = tiny_plan("fedfomo")
    ctx = plan.context(0, 0)
    phase = plan.method.phases(ctx)[0]
    x, y = plan.split(0, "train")
    work = plan.method.prepare(ctx, gather(ctx, first_client(ctx), plan.tasks[0].initial))
    for at in (0, 4):
        work = phase.step(ctx, work, Batch(x[at : at + 4], y[at : at + 4], torch.ones(4)))
    wanted = nn.functional.cross_entropy(plan.tasks[0].net.module(x[:8]), y[:8], reduction="sum")
    assert work["fedfomo.losses"]["samples"].item() == 8
    assert work["fedfomo.losses"]["sum"][0].item() == pytest.approx(wanted.item(), rel=1e-5)


def test_losses_are_sums_over_samples_and_padding_does_not_count():
    plan = tiny_plan("fedfomo")
    ctx = plan.context(0, 0)
    phase = plan.method.phases(ctx)[0]
    x, y = plan.split(0, "train")
    own = first_client(ctx)
    other = {"fedfomo.model/0": tree.map(lambda leaf: leaf + 0.1, own["own"])}
    work = plan.method.prepare(ctx, gather(ctx, own, {**ctx.initial, **other}))
    batch = Batch(x[:4], y[:4], torch.tensor([1.0, 1.0, 1.0, 0.0]))
    after = phase.step(replace(ctx, phase=phase), work, batch)["fedfomo.losses"]
    task = ctx.task
    for k, model in enumerate((own["fedfomo.base"], own["own"], other["fedfomo.model/0"])):
        alone = task.losses(task.forward(model, {}, x[:3]).outputs, y[:3]).sum()
        assert torch.isclose(after["sum"][k], alone)
    assert after["samples"] == 3.0


# -- server -----------------------------------------------------------------------------------------


def server_of(plan, models: dict[int, float], affinity: dict[int, list[float]]):
    params = plan.tasks[0].net.params
    server = first_server(plan.server(0))
    server |= {f"latest@{i}": {n: torch.full_like(leaf, v) for n, leaf in params.items()} for i, v in models.items()}
    return server | {f"fedfomo.affinity@{i}": {"sum": torch.tensor(row).double()} for i, row in affinity.items()}


def test_the_models_of_highest_affinity_are_sent_and_the_own_one_takes_a_place_without_being_sent():
    plan = tiny_plan("fedfomo(models=3, epsilon=0)")
    server = server_of(plan, {i: float(i) for i in range(5)}, {0: [9.0, 0.1, -1.0, 0.3, 0.2]})
    assert plan.method.choose(plan.server(0), server, 0) == [3, 4]
    sent = plan.method.download(plan.server(0), server, (0,)).of(0)
    assert [float(sent[f"fedfomo.model/{k}"]["0.bias"][0]) for k in range(2)] == [3.0, 4.0]
    assert "fedfomo.model/2" not in sent


def test_only_models_that_exist_are_sent():
    plan = tiny_plan("fedfomo(models=4)")
    assert plan.method.choose(plan.server(0), server_of(plan, {0: 1.0, 3: 2.0}, {}), 0) == [3]
    assert plan.method.choose(plan.server(0), server_of(plan, {}, {}), 0) == []


def test_exploration_finds_all_models_and_fades():
    plan = tiny_plan("fedfomo(models=2, epsilon=1, decay=0.1)", rounds=40)
    server = server_of(plan, {i: float(i) for i in range(5)}, {0: [0.0, 5.0, 0.0, 0.0, 0.0]})
    early, late = (
        {plan.method.choose(plan.server(r), server, 0)[0] for r in rounds} for rounds in (range(8), [10, 30])
    )
    assert len(early) > 1
    assert late == {1}


def test_the_choice_is_distinct_and_does_not_depend_on_who_else_is_asked():
    plan = tiny_plan("fedfomo(models=4, epsilon=0.5)")
    server = server_of(plan, {i: float(i) for i in range(5)}, {})
    for round in range(6):
        chosen = plan.method.choose(plan.server(round), server, 2)
        assert len(set(chosen)) == 3
        alone, among = (plan.method.download(plan.server(round), server, ids).of(2) for ids in ((2,), (0, 1, 2)))
        assert codec.encode(alone) == codec.encode(among)


def test_gains_enter_the_affinities_of_the_models_that_were_sent():
    plan = tiny_plan("fedfomo(models=3, epsilon=0)")
    ctx, server = plan.server(0), server_of(plan, dict.fromkeys(range(5), 1.0), {0: [0.0, 0.1, 0.0, 0.3, 0.2]})
    model = {"params": plan.tasks[0].net.params, "buffers": {}, "weight": {"samples": torch.tensor(1.0)}}
    upload = Upload({**model, "fedfomo.gains": {"a": torch.tensor([-0.5, 0.25])}})
    after = aggregate(ctx, server, {0: upload})
    assert after["fedfomo.affinity@0"]["sum"].tolist() == pytest.approx([0.0, 0.1, 0.0, -0.2, 0.45])
    assert "fedfomo.affinity@1" not in after


def test_every_model_that_is_sent_is_counted():
    plan = tiny_plan("fedfomo(models=3)")
    server = server_of(plan, dict.fromkeys(range(5), 1.0), {})
    size = codec.size({"params": plan.tasks[0].net.params})
    assert codec.size(plan.method.download(plan.server(1), server, (0,)).of(0)) == (1 + 2) * size


# -- the whole ----------------------------------------------------------------------------------------


def test_the_default_acts():
    own, alone = play_params(tiny_plan("fedfomo")), play_params(tiny_plan("local"))
    assert any(not torch.allclose(leaf, alone[0][n], atol=1e-3) for n, leaf in own[0].items())
    affinities = [each["sum"] for slot, each in play(tiny_plan("fedfomo")).server.items() if "affinity" in slot]
    assert any((each > 0).any() for each in affinities)


def test_a_client_that_never_trained_uses_the_mean():
    plan = tiny_plan("fedfomo", unseen=1)
    mean = {"params": tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params), "buffers": {}}
    ctx = plan.context(5, 0, newcomer=True)
    model = plan.method.personal_model(ctx, gather(ctx, first_client(ctx), mean, training=False))
    assert all(torch.equal(model["params"][n], leaf) for n, leaf in mean["params"].items())
    server = server_of(plan, dict.fromkeys(range(5), 1.0), {})
    assert set(plan.method.download(plan.server(0), server, (5,)).of(5)) == {"params", "buffers"}


def test_in_the_first_round_there_is_nobody_to_follow():
    plan = tiny_plan("fedfomo")
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0)
    assert train(plan, 0, 0, None, download).upload.slots["fedfomo.gains"]["a"].shape == (0,)


def test_wrappers_that_act_on_one_model_are_refused():
    check_wrappers_refused("fedfomo", "several models of others")


def test_bad_options():
    check_bad_options("fedfomo", "models=-1", "share=0", "share=1", "epsilon=1.5", "decay=-1")


def test_one_model_of_others_runs_with_normalisation():
    check_method("fedfomo(models=1)", ["messages", "batchnorm"])


def test_fine_tuning_serves_participants_absent_and_unseen_clients():
    check_method("finetune(fedfomo)", ["round_trip", "messages", "pure", "stacking", "unseen_clients", "batchnorm"])
