"""FedALA: element by element, how much of the global head a client takes, learnt before it trains."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.method import methods
from idiolect.contract.phase import Phase
from idiolect.core import tree
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines import Loop, engines
from idiolect.engines.client import batches, train
from idiolect.methods.fedala import MIX, OWN, WEIGHTS, watched
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.testing import check_method, play, require_equal, tiny_plan, views

HEAD = {"4.weight", "4.bias"}


def second_round(method="fedala", index=0, round=1, **changes):
    """A plan, what a client holds after a round, and what it gets in the next."""
    plan = tiny_plan(method, **changes)
    store = Store(None)
    RoundLoop(plan, Loop(plan), store).run(stop=lambda: store.fact("next_round") == round)
    download = plan.method.download(plan.server(round), store.server(), plan.data.seen)
    return plan, store.clients([index])[index], download.of(index)


# -- neutral cases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("neutral", ["fedala(rate=0)", "fedala(layers=0)"])
def test_weights_of_one_are_fedavg_to_the_bit(neutral):
    own, plain = play(tiny_plan(neutral)), play(tiny_plan("fedavg"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in own.server["params"].items())


def test_the_default_acts():
    own, plain = views(tiny_plan("fedala")), views(tiny_plan("fedavg"))
    assert not torch.equal(own[0]["4.weight"], plain[0]["4.weight"])
    assert not torch.equal(own[0]["4.weight"], own[1]["4.weight"])


def test_only_the_last_layers_are_mixed():
    own = views(tiny_plan("fedala"))
    for name in own[0]:
        assert torch.equal(own[0][name], own[1][name]) == (name not in HEAD)
    own = views(tiny_plan("fedala(layers=2)"))
    assert not torch.equal(own[0]["2.weight"], own[1]["2.weight"])
    assert torch.equal(own[0]["0.weight"], own[1]["0.weight"])


# -- the schedule --------------------------------------------------------------------------------------


def test_many_passes_the_first_time_and_one_later_and_none_in_round_0():
    plan = tiny_plan("fedala(share=0.5)")

    def passes(round, newcomer):
        return [phase.epochs for phase in plan.method.phases(plan.context(0, round, newcomer)) if phase.name == MIX]

    assert passes(0, True) == []
    assert passes(1, False) == passes(1, True) == passes(7, True) == [10]
    assert passes(2, False) == [1]
    (mix, _) = plan.method.phases(plan.context(0, 2, False))
    assert (mix.share, mix.part) == (0.5, HEAD)


def test_the_weights_persist():
    """What is learnt in one round is where the next begins, and a round of one pass moves it further."""
    plan, state, download = second_round(round=2)
    ctx = plan.context(0, 2, newcomer=False)
    work = plan.method.begin(ctx, state, download)
    assert all(torch.equal(work[WEIGHTS][n], leaf) for n, leaf in state[WEIGHTS].items())
    assert any(bool((leaf < 1).any()) for leaf in state[WEIGHTS].values())
    after = train(plan, 0, 2, state, download).state
    assert any(not torch.equal(after[WEIGHTS][n], leaf) for n, leaf in state[WEIGHTS].items())


def test_the_weights_stay_between_zero_and_one():
    played = play(tiny_plan("fedala(rate=1000)"))
    leaves = [leaf for state in played.clients.values() if state for leaf in state[WEIGHTS].values()]
    assert all(bool(((leaf >= 0) & (leaf <= 1)).all()) for leaf in leaves)
    assert any(bool((leaf == 0).any()) for leaf in leaves)


def test_everything_but_the_mixed_layers_is_frozen_while_the_weights_are_fitted():
    plan, state, download = second_round(norm=True)
    ctx = plan.context(0, 1, newcomer=False)
    work = plan.method.begin(ctx, state, download)
    ctx.phase = plan.method.phases(ctx)[0]
    before = work
    for batch in batches(plan, ctx, 0):
        work = plan.method.step(ctx, work, batch)
    assert all(torch.equal(leaf, before["buffers"][n]) for n, leaf in work["buffers"].items())
    head = {n for n, leaf in work["params"].items() if not torch.equal(leaf, before["params"][n])}
    assert head == set(work[OWN]) == {"5.weight", "5.bias"}


def test_fitting_ends_when_the_losses_have_settled():
    """Losses 1, 0.5 (standard deviation 0.25): go on; 0.5, 0.4 (0.05): end at 0.1, and never begin again."""
    means = torch.full((2,), torch.inf)
    watch = {"samples": torch.tensor(2.0), "means": means, "going": torch.tensor(True)}
    seen = []
    for loss in (1.0, 0.5, 0.4, 9.0):
        watch = watched({**watch, "loss": torch.tensor(2 * loss), "samples": torch.tensor(2.0)}, settle=0.1)
        seen.append(bool(watch["going"]))
    assert seen == [True, True, False, False]
    assert watch["means"].tolist() == pytest.approx([0.4, 9.0])
    assert float(watch["loss"]) == float(watch["samples"]) == 0.0


def test_settled_weights_do_not_move():
    plan, state, download = second_round("fedala(settle=1000, window=2, start_passes=6)")
    short, other, _ = second_round("fedala(settle=0, window=2, start_passes=2)")
    assert all(torch.equal(leaf, other[OWN][n]) for n, leaf in state[OWN].items())
    settled, two = (train(each, 0, 1, state, download).state[WEIGHTS] for each in (plan, short))
    assert all(torch.equal(leaf, two[n]) for n, leaf in settled.items())


# -- formulas ------------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """Own value 4, global 8, W = 0.75: 4 + 4 * 0.75 = 7. Slope 0.05 moves W by -0.05 * 4 to 0.55: training starts at
    4 + 4 * 0.55 = 6.2. The model is w x with loss 0.05 w: a sum of outputs, at x = 0.05."""
    plan = tiny_plan("fedala")
    x, y = torch.full((2, 1), 0.05), torch.zeros(2, 1)
    task = Task(nn.Linear(1, 1, bias=False), (x, y), loss=lambda outputs, _: outputs.sum(1))
    ctx = plan.context(0, 1, newcomer=False)
    ctx.task = task
    one = lambda value: {"weight": torch.tensor([[value]])}  # noqa: E731
    client = {OWN: one(4.0), WEIGHTS: one(0.75)}
    download = {"params": one(8.0), "buffers": {}}
    assert plan.method.view(ctx, client, download)["params"]["weight"].item() == pytest.approx(7.0)
    work = plan.method.begin(ctx, client, download)
    ctx.phase = plan.method.phases(ctx)[0]
    after = plan.method.step(ctx, work, Batch(x, y, torch.ones(2)))
    assert after[WEIGHTS]["weight"].item() == pytest.approx(0.55)
    assert after["params"]["weight"].item() == pytest.approx(6.2)


def test_the_step_of_the_weights_follows_the_finite_difference_of_the_loss():
    plan = tiny_plan("fedala(rate=0.001, layers=2)")
    task, ctx = plan.tasks[0], plan.context(0, 1)
    x, y = (part[:4] for part in plan.split(0, "train"))
    batch = Batch(x.double(), y, torch.tensor([1.0, 1.0, 1.0, 0.0]).double())
    received = tree.map(lambda leaf: leaf.double(), task.net.params)
    task.net.module.double()
    top = plan.method.top(ctx)
    own = {n: leaf + 0.3 for n, leaf in received.items() if n in top}
    weights = tree.map(lambda leaf: torch.full_like(leaf, 0.5), own)
    ctx.phase = Phase(MIX, slots=(WEIGHTS,), part=top)
    client = {OWN: own, WEIGHTS: weights}
    work = plan.method.begin(ctx, client, {"params": received, "buffers": {}})
    after = plan.method.step(ctx, work, batch)[WEIGHTS]

    def loss(tried):
        head = {n: own[n] + (received[n] - own[n]) * tried[n] for n in own}
        return task.loss({**received, **head}, {}, batch).loss

    for name in own:
        nudge = torch.zeros_like(own[name]).reshape(-1)
        nudge[0] = 1e-6
        up, down = ({**weights, name: weights[name] + s * nudge.reshape(own[name].shape)} for s in (1, -1))
        slope = (loss(up) - loss(down)) / 2e-6
        assert torch.isclose((weights[name] - after[name]).reshape(-1)[0] / 0.001, slope, rtol=1e-4, atol=1e-8)


# -- what clients predict with -------------------------------------------------------------------------


def test_the_view_is_the_mixture_with_the_newest_global_model():
    plan, state, download = second_round(round=2)
    view = plan.method.view(plan.context(0, 2, newcomer=False), state, download)["params"]
    for name, leaf in view.items():
        newest = download["params"][name]
        if name in HEAD:
            newest = state[OWN][name] + (newest - state[OWN][name]) * state[WEIGHTS][name]
        assert torch.allclose(leaf, newest)


@pytest.mark.parametrize("index", [0, 5])
def test_clients_that_never_trained_use_the_global_model(index):
    plan = tiny_plan("fedala", unseen=1)
    received = {"params": tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params), "buffers": {}}
    ctx = plan.context(index, 2, newcomer=True)
    view = plan.method.view(ctx, plan.method.client_init(ctx), received)
    assert all(torch.equal(view["params"][n], leaf) for n, leaf in received["params"].items())


def test_the_mean_weight_is_recorded():
    rows = play(tiny_plan("fedala")).rows
    found = {row[6] for row in rows if row[5] == "global_share"}
    assert 1.0 in found
    assert min(found) < 1.0


# -- the rest ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedala", "flayer(fedala)"])
def test_engines_agree_when_the_weights_are_fitted(method):
    plan = tiny_plan(method, rounds=2)
    require_equal(
        play(plan), play(tiny_plan(method, rounds=2), engines.build("vector(chunk=3, count=1)").make), "vector", 1e-3
    )


@pytest.mark.parametrize("outer", ["fedlag({}, warmup=0, k=1)", "flayer({})", "finetune({})"])
def test_others_ride_on_it(outer):
    played, plain = (play(tiny_plan(outer.format(each))) for each in ("fedala", "fedavg"))
    assert any(bool((leaf < 1).any()) for leaf in played.clients[0][WEIGHTS].values())
    assert not torch.equal(played.server["params"]["0.weight"], plain.server["params"]["0.weight"])


def test_bad_options_are_refused():
    for text in ("share=0", "share=1.5", "rate=-1", "start_passes=0", "window=1", "settle=-0.1", "layers=-1"):
        with pytest.raises(OptionError, match=text.split("=")[0]):
            methods.build(f"fedala({text})")
    with pytest.raises(ModelError, match="3 layers"):
        tiny_plan("fedala(layers=4)")


def test_it_keeps_the_contract():
    check_method("fedala(layers=2, share=0.5)")
