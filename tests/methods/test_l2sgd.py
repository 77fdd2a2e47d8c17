"""L2SGD: a random number of local steps, then a move of every personal model towards the mean."""

from dataclasses import dataclass

import pytest
import torch

from idiolect.contract import Method, Phase, methods
from idiolect.core import tree
from idiolect.core.errors import OptionError
from idiolect.engines.slots import aggregate, first_client, first_server, keep_and_send
from idiolect.methods.l2sgd import OWN, SHARE
from idiolect.methods.local import Local
from idiolect.task.schedules import Exponential
from idiolect.testing import (
    check_bad_options,
    play,
    play_params,
    require_stacking_agrees,
    tiny_plan,
)
from idiolect.testing.scalar import personal_model, start_training, take_batch, train_client

WHOLE = "l2sgd(p=0.5, lam=10)"
"""At the tiny plan's learning rate of 0.1 a move goes all the way: 0.1 * 10 * 0.5 / 0.5 = 1."""


@dataclass(frozen=True)
class Stepwise(Method):
    """FedAvg with the local steps of L2SGD(p=0.5)."""

    def phases(self, ctx):
        return (Phase(self.step, steps=methods.build("l2sgd(p=0.5)").steps(ctx)),)


@dataclass(frozen=True)
class StepwiseAlone(Stepwise, Local):
    """The same steps, and nothing sent."""


@pytest.mark.parametrize(("method", "other"), [("l2sgd(p=0.5, lam=0)", StepwiseAlone()), (WHOLE, Stepwise())])
def test_moves_of_nothing_and_of_all_the_way_are_local_training_and_fedavg_to_the_bit(method, other):
    own, plain = play_params(tiny_plan(method)), play_params(tiny_plan(other))
    assert all(torch.equal(leaf, plain[i][n]) for i, model in own.items() for n, leaf in model.items())


def test_a_stronger_pull_brings_the_models_nearer_to_each_other():
    def spread(lam):
        found = play_params(tiny_plan(f"l2sgd(p=0.5, lam={lam})"))
        return sum(float(tree.norm(tree.sub(found[i], found[0]))) for i in found)

    assert spread(9) < spread(5) < spread(1) < spread(0)


def test_the_default_acts():
    own, alone = play_params(tiny_plan("l2sgd(p=0.5)")), play_params(tiny_plan(StepwiseAlone()))
    plain = play_params(tiny_plan(Stepwise()))
    assert not torch.equal(own[0]["0.weight"], alone[0]["0.weight"])
    assert not torch.equal(own[0]["0.weight"], plain[0]["0.weight"])


# -- the coin ------------------------------------------------------------------------------------------


def test_the_steps_of_a_round_are_geometric_and_common_to_all():
    plan = tiny_plan("l2sgd(p=0.2)")
    drawn = []
    for round in range(2000):
        steps = {plan.method.phases(plan.context(i, round))[0].steps for i in (0, 1)}
        assert steps == {int(plan.method.server_records(plan.server(round), {})["steps"])}
        drawn += steps
    assert min(drawn) == 1
    assert sum(drawn) / len(drawn) == pytest.approx(5, rel=0.05)
    assert sum(each == 1 for each in drawn) / len(drawn) == pytest.approx(0.2, abs=0.03)


def test_a_round_takes_these_steps_whatever_the_size_of_the_client():
    plan = tiny_plan("l2sgd", epochs=7)
    steps = {train_client(plan, i).steps for i in (0, 3)}
    assert steps == {plan.method.phases(plan.context(0, 0))[0].steps}


def test_another_seed_tosses_other_coins():
    sequences = [
        [plan.method.phases(plan.context(0, round))[0].steps for round in range(20)]
        for plan in (tiny_plan("l2sgd"), tiny_plan("l2sgd"), tiny_plan("l2sgd", seed=1))
    ]
    assert sequences[0] == sequences[1] != sequences[2]


# -- the move ------------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """lr = 0.1, p = 0.2, lambda = 1: a = 0.1 * 0.8 / 0.2 = 0.4. Models 2 and 7 of equal clients have mean 4.5 and move
    to 0.6 * 2 + 0.4 * 4.5 = 3 and 0.6 * 7 + 0.4 * 4.5 = 6."""
    plan = tiny_plan("l2sgd(p=0.2, lam=1)", lr=0.1)
    states, uploads = {}, {}
    for i, value in enumerate([2.0, 7.0]):
        client = first_client(plan.context(0, 0))
        ctx, work = start_training(plan, state=client)
        work = {**work, "params": tree.map(lambda leaf, v=value: torch.full_like(leaf, v), work["params"])}
        states[i], uploads[i] = keep_and_send(ctx, client, plan.method.finish(ctx, work))
    server = aggregate(plan.server(0), first_server(plan.server(0)), uploads)
    assert server["params"]["0.bias"][0].item() == 4.5
    for i, moved in enumerate([3.0, 6.0]):
        _, model = personal_model(plan, server, states[i])
        assert all(torch.allclose(leaf, torch.tensor(moved)) for leaf in model["params"].values())


def test_local_training_starts_from_what_was_last_predicted_with():
    """Between its participations a client's model is its own, moved towards the newest mean."""
    plan = tiny_plan("l2sgd", participation=0.6)
    played = play(plan)
    for i, state in played.clients.items():
        _, model = personal_model(plan, played.server, state, i, round=3)
        _, work = start_training(plan, played.server, state, i, round=3)
        assert all(torch.equal(work["params"][n], leaf) for n, leaf in model["params"].items())


def test_right_after_local_training_the_move_is_yet_to_come():
    plan = tiny_plan("l2sgd")
    ctx, work = start_training(plan, state=first_client(plan.context(0, 0)))
    work = plan.method.finish(ctx, ctx.phase.step(ctx, work, take_batch(plan)))
    model = plan.method.personal_model(ctx, work)
    assert all(torch.equal(model["params"][n], leaf) for n, leaf in work["params"].items())


def test_how_far_a_move_goes_follows_the_learning_rate_of_its_round():
    plan = tiny_plan("l2sgd(p=0.5, lam=4)", lr=0.1, schedule=Exponential(gamma=0.5))
    assert [plan.method.share(plan.context(0, round)) for round in (0, 1)] == pytest.approx([0.4, 0.2])
    played = play(plan)
    assert float(played.clients[0][SHARE]["a"]) == pytest.approx(0.1)


def test_without_lambda_a_move_goes_half_the_way_at_any_learning_rate():
    for lr in (0.001, 10.0):
        plan = tiny_plan("l2sgd", lr=lr)
        assert plan.method.share(plan.context(0, 0)) == 0.5


def test_statistics_move_too_and_counters_stay():
    plan = tiny_plan("l2sgd", norm=True)
    initial = plan.tasks[0].initial
    server = {**initial, "buffers": tree.map(lambda leaf: leaf + 2, initial["buffers"])}
    client = {**first_client(plan.context(0, 0)), SHARE: {"a": torch.tensor(0.25)}}
    buffers = personal_model(plan, server, client, round=1)[1]["buffers"]
    assert torch.allclose(buffers["1.running_mean"], torch.tensor(0.5))
    assert buffers["1.num_batches_tracked"].item() == 0
    assert buffers["1.num_batches_tracked"].dtype == torch.int64


def test_what_the_run_keeps_local_does_not_move():
    plan = tiny_plan("l2sgd", norm=True, norm_stats="local", norm_affine="local")
    played = play(plan)
    found = play_params(plan)
    assert torch.equal(found[0]["1.weight"], played.clients[0][OWN]["1.weight"])


@pytest.mark.parametrize("index", [0, 5])
def test_clients_that_never_trained_use_the_mean(index):
    plan = tiny_plan("l2sgd", unseen=1)
    mean = {"params": tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params), "buffers": {}}
    for start in (personal_model, start_training):
        found = start(plan, mean, index=index, round=2)[1]["params"]
        assert all(torch.equal(found[n], leaf) for n, leaf in mean["params"].items())


# -- the rest ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", ["fedlag({}, warmup=0, k=1)", "flayer({})", "finetune({})"])
def test_wrappers_wrap_it(outer):
    found = play_params(tiny_plan(outer.format("l2sgd(p=0.5)")))
    assert not torch.equal(found[0]["0.weight"], found[1]["0.weight"])


def test_engines_agree_after_moves():
    require_stacking_agrees(tiny_plan("l2sgd", participation=0.6), relative=1e-3)


def test_a_move_beyond_the_mean_is_refused_before_any_step():
    """At learning rate 0.1 and p = 0.1 lambda = 2 would give a = 0.1 * 2 * 0.9 / 0.1 = 1.8."""
    plan = tiny_plan("l2sgd(lam=2)", lr=0.1)
    with pytest.raises(OptionError, match=r"a = .* = 1.8 .*choose lam up to 1.11"):
        start_training(plan)
    with pytest.raises(OptionError, match="lam=2"):
        play(plan)


def test_bad_options_are_refused():
    check_bad_options("l2sgd", "p=0", "p=1", "p=-0.5", "lam=-1")
