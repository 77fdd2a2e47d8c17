"""FedALA: element by element, how much of the global head a client takes, learnt before it trains."""

import pytest
import torch

from idiolect import Batch
from idiolect.contract import tree
from idiolect.core.errors import ModelError
from idiolect.engines import Loop
from idiolect.engines.phases import run_phases
from idiolect.engines.slots import gather
from idiolect.methods.fedala import MIX, OWN, WEIGHTS, end_pass
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.testing import (
    check_bad_options,
    play,
    play_params,
    require_stacking_agrees,
    tiny_plan,
)
from idiolect.testing.scalar import (
    context_of,
    numeric_gradient,
    personal_model,
    scalar,
    scalar_task,
    start_training,
    train_client,
)

HEAD = {"4.weight", "4.bias"}


def second_round(method="fedala", round=1, **changes):
    """A plan, and what server and client 0 have before a round."""
    plan = tiny_plan(method, **changes)
    store = Store(None)
    RoundLoop(plan, Loop(plan), store).run(stop=lambda: store.fact("next_round") == round)
    return plan, store.server(), store.clients([0])[0]


# -- neutral cases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("neutral", ["fedala(weights_lr=0)", "fedala(layers=0)"])
def test_weights_of_one_are_fedavg_to_the_bit(neutral):
    own, plain = play(tiny_plan(neutral)), play(tiny_plan("fedavg"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in own.server["params"].items())


def test_the_default_acts():
    own, plain = play_params(tiny_plan("fedala")), play_params(tiny_plan("fedavg"))
    assert not torch.equal(own[0]["4.weight"], plain[0]["4.weight"])
    assert not torch.equal(own[0]["4.weight"], own[1]["4.weight"])


def test_only_the_last_layers_are_mixed():
    own = play_params(tiny_plan("fedala"))
    for name in own[0]:
        assert torch.equal(own[0][name], own[1][name]) == (name not in HEAD)
    own = play_params(tiny_plan("fedala(layers=2)"))
    assert not torch.equal(own[0]["2.weight"], own[1]["2.weight"])
    assert torch.equal(own[0]["0.weight"], own[1]["0.weight"])


# -- the schedule --------------------------------------------------------------------------------------


def test_many_passes_the_first_time_and_one_later_and_none_in_round_0():
    plan = tiny_plan("fedala(share=0.5)")

    def passes(round, newcomer):
        return [phase.epochs for phase in plan.method.phases(plan.context(0, round, newcomer)) if phase.name == MIX]

    assert passes(0, True) == []
    assert passes(1, False) == passes(1, True) == passes(7, True) == [20]
    assert passes(2, False) == [1]
    (mix, _) = plan.method.phases(plan.context(0, 2, False))
    assert (mix.samples, mix.part) == (0.5, HEAD)


def test_the_weights_persist():
    """What is learnt in one round is where the next begins, and a round of one pass moves it further."""
    plan, server, state = second_round(round=2)
    _, work = start_training(plan, server, state, round=2)
    assert all(torch.equal(work[WEIGHTS][n], leaf) for n, leaf in state[WEIGHTS].items())
    assert any(bool((leaf < 1).any()) for leaf in state[WEIGHTS].values())
    after = train_client(plan, 0, 2, server, state).state
    assert any(not torch.equal(after[WEIGHTS][n], leaf) for n, leaf in state[WEIGHTS].items())


def test_the_weights_stay_between_zero_and_one():
    played = play(tiny_plan("fedala(weights_lr=1000)"))
    leaves = [leaf for state in played.clients.values() if state for leaf in state[WEIGHTS].values()]
    assert all(bool(((leaf >= 0) & (leaf <= 1)).all()) for leaf in leaves)
    assert any(bool((leaf == 0).any()) for leaf in leaves)


def test_everything_but_the_mixed_layers_is_frozen_while_the_weights_are_fitted():
    plan, server, state = second_round(norm=True)
    ctx, before = start_training(plan, server, state, round=1)
    work, _ = run_phases(plan, ctx, [ctx.phase], before)
    assert all(torch.equal(leaf, before["buffers"][n]) for n, leaf in work["buffers"].items())
    head = {n for n, leaf in work["params"].items() if not torch.equal(leaf, before["params"][n])}
    assert head == set(work[OWN]) == {"5.weight", "5.bias"}


def test_fitting_ends_when_the_losses_have_settled():
    """Losses 1, 0.5 (standard deviation 0.25): go on; 0.5, 0.4 (0.05): end at 0.1, and never begin again."""
    means = torch.full((2,), torch.inf)
    watch = {"samples": torch.tensor(2.0), "means": means, "going": torch.tensor(True)}
    seen = []
    for loss in (1.0, 0.5, 0.4, 9.0):
        watch = end_pass({**watch, "loss": torch.tensor(2 * loss), "samples": torch.tensor(2.0)}, settle=0.1)
        seen.append(bool(watch["going"]))
    assert seen == [True, True, False, False]
    assert watch["means"].tolist() == pytest.approx([0.4, 9.0])
    assert float(watch["loss"]) == float(watch["samples"]) == 0.0


def test_settled_weights_do_not_move():
    plan, server, state = second_round("fedala(settle=1000, window=2, start_passes=6)")
    short, _, other = second_round("fedala(settle=0, window=2, start_passes=2)")
    assert all(torch.equal(leaf, other[OWN][n]) for n, leaf in state[OWN].items())
    settled, two = (train_client(each, 0, 1, server, state).state[WEIGHTS] for each in (plan, short))
    assert all(torch.equal(leaf, two[n]) for n, leaf in settled.items())


# -- formulas ------------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """Own value 4, global 8, W = 0.75: 4 + 4 * 0.75 = 7. Gradient 0.05 moves W by -0.05 * 4 to 0.55: training starts at
    4 + 4 * 0.55 = 6.2. The model is w x with loss 0.05 w: a sum of outputs, at x = 0.05."""
    plan = tiny_plan("fedala")
    x, y = torch.full((2, 1), 0.05), torch.zeros(2, 1)
    task = scalar_task(8.0, x, y, loss=lambda outputs, _: outputs.sum(1))
    ctx = context_of(plan, 0, round=1, newcomer=False, task=task)
    work = gather(ctx, {OWN: scalar(4.0), WEIGHTS: scalar(0.75)}, {"params": scalar(8.0), "buffers": {}})
    assert plan.method.personal_model(ctx, work)["params"]["weight"].item() == pytest.approx(7.0)
    after = ctx.phase.step(ctx, plan.method.prepare(ctx, work), Batch(x, y, torch.ones(2)))
    assert after[WEIGHTS]["weight"].item() == pytest.approx(0.55)
    assert after["params"]["weight"].item() == pytest.approx(6.2)


def test_the_step_of_the_weights_follows_the_finite_difference_of_the_loss():
    plan = tiny_plan("fedala(weights_lr=0.001, layers=2)")
    task, ctx = plan.tasks[0], context_of(plan, 0, round=1)
    x, y = (part[:4] for part in plan.split(0, "train"))
    batch = Batch(x.double(), y, torch.tensor([1.0, 1.0, 1.0, 0.0]).double())
    received = tree.map(lambda leaf: leaf.double(), task.net.params)
    task.net.module.double()
    own = {n: leaf + 0.3 for n, leaf in received.items() if n in ctx.phase.part}
    weights = tree.map(lambda leaf: torch.full_like(leaf, 0.5), own)
    work = plan.method.prepare(ctx, {"params": received, "buffers": {}, OWN: own, WEIGHTS: weights})
    after = ctx.phase.step(ctx, work, batch)[WEIGHTS]

    def loss(tried):
        head = {n: own[n] + (received[n] - own[n]) * tried[n] for n in own}
        return task.loss({**received, **head}, {}, batch).loss

    for name, gradient in numeric_gradient(loss, weights).items():
        assert torch.allclose((weights[name] - after[name]) / 0.001, gradient, rtol=1e-4, atol=1e-8), name


# -- what clients predict with -------------------------------------------------------------------------


def test_the_personal_model_is_the_mixture_with_the_newest_global_model():
    plan, server, state = second_round(round=2)
    _, model = personal_model(plan, server, state, round=2)
    for name, leaf in model["params"].items():
        newest = server["params"][name]
        if name in HEAD:
            newest = state[OWN][name] + (newest - state[OWN][name]) * state[WEIGHTS][name]
        assert torch.allclose(leaf, newest)


@pytest.mark.parametrize("index", [0, 5])
def test_clients_that_never_trained_use_the_global_model(index):
    plan = tiny_plan("fedala", unseen=1)
    server = {"params": tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params), "buffers": {}}
    _, model = personal_model(plan, server, index=index, round=2)
    assert all(torch.equal(model["params"][n], leaf) for n, leaf in server["params"].items())


def test_the_mean_weight_is_recorded():
    rows = play(tiny_plan("fedala")).rows
    found = {row[6] for row in rows if row[5] == "global_share"}
    assert 1.0 in found
    assert min(found) < 1.0


# -- the rest ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedala", "flayer(fedala)"])
def test_engines_agree_when_the_weights_are_fitted(method):
    require_stacking_agrees(tiny_plan(method, rounds=2), relative=1e-3)


@pytest.mark.parametrize("outer", ["fedlag({}, warmup=0, k=1)", "flayer({})", "finetune({})"])
def test_wrappers_wrap_it(outer):
    played, plain = (play(tiny_plan(outer.format(each))) for each in ("fedala", "fedavg"))
    assert any(bool((leaf < 1).any()) for leaf in played.clients[0][WEIGHTS].values())
    assert not torch.equal(played.server["params"]["0.weight"], plain.server["params"]["0.weight"])


def test_bad_options_are_refused():
    check_bad_options(
        "fedala", "share=0", "share=1.5", "weights_lr=-1", "start_passes=0", "window=1", "settle=-0.1", "layers=-1"
    )
    with pytest.raises(ModelError, match="3 layers"):
        tiny_plan("fedala(layers=4)")
