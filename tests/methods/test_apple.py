"""APPLE: a personal model of all clients' cores, of which a client trains its own and how much it takes of each."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Federation, Task, run
from idiolect.contract import Upload, methods
from idiolect.core import codec, tree
from idiolect.engines.client_round import train
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.apple import mix_cores
from idiolect.testing import check_bad_options, check_method, check_wrappers_refused, play, play_params, tiny_plan

LOG = {"loss": torch.zeros(()), "samples": torch.zeros(())}


def message(plan, client=0, server=None, round=0):
    ctx = plan.server(round)
    return plan.method.download(ctx, server or first_server(ctx), (client,)).of(client)


def prepare(ctx, state, download):
    """The slots that training starts from."""
    return ctx.method.prepare(ctx, gather(ctx, state, download))


def personal_model(ctx, state, download):
    """What a client predicts with."""
    return ctx.method.personal_model(ctx, gather(ctx, state, download, training=False))


def counted(plan, samples=(14.0, 9.0, 6.0, 3.0, 1.0), cores=None):
    """A server that knows all numbers of samples and has a core of the given value of some clients."""
    server = first_server(plan.server(0)) | {"apple.samples": {"n": torch.tensor(samples)}}
    params = plan.tasks[0].net.params
    filled = {i: {n: torch.full_like(leaf, value) for n, leaf in params.items()} for i, value in (cores or {}).items()}
    return server | {f"latest@{i}": each for i, each in filled.items()}


def scalar_step(method: str, round: int = 0, rounds: int = 100):
    """One step at rate 1 of two clients' scalar cores 1 and 3 with p = (0.5, 0.25) and loss gradient 2.

    The model is w x with squared error: at w = 1.25, x = 1 the gradient is 2 (1.25 - 0.25) = 2 for y = 0.25.
    """
    plan = tiny_plan(method, lr=1.0, rounds=rounds)
    x, y = torch.ones(2, 1), torch.full((2, 1), 0.25)
    ctx = replace(plan.context(0, round), task=Task(nn.Linear(1, 1, bias=False), (x, y)))
    (phase,) = plan.method.phases(ctx)
    work = {
        "params": {"weight": torch.tensor([[1.0]])},
        "buffers": {},
        "apple.cores": {"weight": torch.tensor([[[7.0]], [[3.0]]])},
        "apple.relation": {"p": torch.tensor([0.5, 0.25])},
        "apple.prior": {"p": torch.tensor([0.5, 0.5])},
        "apple.me": {"here": torch.tensor([1.0, 0.0])},
        "log": LOG,
    }
    return work, phase.step(replace(ctx, phase=phase), work, Batch(x, y, torch.ones(2)))


# -- one step ---------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """Personal model 0.5 * 1 + 0.25 * 3 = 1.25; gradient 2 there; the core moves along 0.5 * 2 = 1, the relations
    along 2 * 1 = 2 and 2 * 3 + 0.4 (0.25 - 0.5) = 5.9. The copy of the own core among those received is not used."""
    work, after = scalar_step("apple(mu=0.4, lr_p=1)")
    assert mix_cores(work)["weight"].item() == 1.25
    assert after["params"]["weight"].item() == pytest.approx(1 - 1)
    assert after["apple.relation"]["p"].tolist() == pytest.approx([0.5 - 2, 0.25 - 5.9])


def test_rates_of_core_and_relations_are_their_own():
    _, after = scalar_step("apple(mu=0, lr_p=0.01, core_rate=3)")
    assert after["params"]["weight"].item() == pytest.approx(1 - 3)
    assert after["apple.relation"]["p"].tolist() == pytest.approx([0.5 - 0.02, 0.25 - 0.06])
    _, after = scalar_step("apple(mu=0)")
    assert after["apple.relation"]["p"].tolist() == pytest.approx([0.5 - 0.2, 0.25 - 0.6])


def test_both_gradients_follow_the_finite_difference_of_the_whole_objective():
    plan = tiny_plan("apple(mu=0.7, lr_p=1)", lr=1.0)
    task, ctx = plan.tasks[0], plan.context(1, 0)
    (phase,) = plan.method.phases(ctx)
    ctx = replace(ctx, phase=phase)
    work = prepare(ctx, first_client(ctx), message(plan, 1, counted(plan, cores={0: 0.1, 2: -0.2})))
    work = {s: tree.map(lambda leaf: leaf.double(), each) for s, each in {**work, "log": LOG}.items()}
    p = torch.tensor([0.3, 0.6, -0.2, 0.1, 0.4]).double()
    work["apple.relation"] = {"p": p}
    task.net.module.double()
    x, y = plan.split(1, "train")
    batch = Batch(x[:4].double(), y[:4], torch.tensor([1.0, 1.0, 1.0, 0.0]).double())
    after = phase.step(ctx, work, batch)

    def objective(slots):
        away = slots["apple.relation"]["p"] - work["apple.prior"]["p"]
        return task.loss(mix_cores(slots), {}, batch).loss + 0.35 * (away**2).sum()

    def slope(slot, name, at):
        nudge = torch.zeros_like(work[slot][name]).reshape(-1)
        nudge[at] = 1e-6
        nudge = nudge.reshape(work[slot][name].shape)
        up, down = ({**work, slot: {**work[slot], name: work[slot][name] + s * nudge}} for s in (1, -1))
        return (objective(up) - objective(down)) / 2e-6

    for name, leaf in work["params"].items():
        step = (leaf - after["params"][name]).reshape(-1)[0]
        assert torch.isclose(step, slope("params", name, 0), rtol=1e-5, atol=1e-8)
    for at in range(5):
        step = (p - after["apple.relation"]["p"])[at]
        assert torch.isclose(step, slope("apple.relation", "p", at), rtol=1e-5, atol=1e-8)


def test_the_pull_fades_to_zero_within_its_share_of_the_rounds():
    cosine, falling = methods.build("apple"), methods.build("apple(fading=exponential)")
    ctx = tiny_plan("apple", rounds=100).context(0, 0)
    rounds = [replace(ctx, round=round) for round in (0, 5, 9, 10, 50)]
    found = [(cosine.fade(here), falling.fade(here)) for here in rounds]
    assert found[0] == (1.0, 1.0)
    assert found[1] == pytest.approx((0.5, math.sqrt(0.001)))
    assert 0 < found[2][0] < 0.1
    assert found[3] == found[4] == (0.0, 0.0)
    _, late = scalar_step("apple(mu=0.4, lr_p=1)", round=10)
    assert late["apple.relation"]["p"][1].item() == pytest.approx(0.25 - 6)


def test_the_default_learns_relations_and_core():
    plan = tiny_plan("apple")
    state = train(plan, 0, 0, None, message(plan, 0, counted(plan))).state
    assert not torch.equal(state["own"]["0.weight"], plan.tasks[0].net.params["0.weight"])
    assert not torch.allclose(state["apple.relation"]["p"], torch.tensor([14.0, 9, 6, 3, 1]) / 33, atol=1e-6)


# -- what is known and sent ---------------------------------------------------------------------------


def test_relations_start_at_the_shares_of_samples_which_a_round_before_the_first_tells():
    plan = tiny_plan("apple(lr_p=0)", rounds=1)
    assert plan.method.needs.setup_rounds == 1
    played = play(plan)
    assert played.server["apple.samples"]["n"].tolist() == [14, 9, 6, 3, 1]
    for state in played.clients.values():
        assert torch.allclose(state["apple.relation"]["p"], torch.tensor([14.0, 9, 6, 3, 1]) / 33)


def test_the_set_up_round_sends_one_number_and_changes_nothing():
    plan = tiny_plan("apple")
    assert not any(slot.startswith("apple.core/") for slot in message(plan, round=-1))
    outcome = train(plan, 0, -1, None, message(plan, round=-1))
    assert outcome.upload.slots == {"apple.request": {}, "weight": {"samples": torch.tensor(14.0)}}
    assert codec.size(outcome.upload.slots) == 4
    assert all(torch.equal(leaf, plan.tasks[0].net.params[n]) for n, leaf in outcome.state["own"].items())
    assert not outcome.state["apple.relation"]["trained"]


def test_the_core_is_sent_not_the_personal_model():
    plan = tiny_plan("apple")
    outcome = train(plan, 0, 0, None, message(plan, 0, counted(plan, cores={1: 2.0})))
    sent, core = outcome.upload.slots["params"], outcome.state["own"]
    assert all(torch.equal(leaf, core[n]) for n, leaf in sent.items())
    download = message(plan, 0, counted(plan, cores={1: 2.0}))
    model = personal_model(plan.context(0, 0, newcomer=False), outcome.state, download)
    assert not torch.allclose(model["params"]["0.weight"], sent["0.weight"], atol=0.05)


def test_the_personal_model_follows_the_others_newest_cores_also_of_an_absent_client():
    plan = tiny_plan("apple")
    state = train(plan, 0, 0, None, message(plan, 0, counted(plan))).state
    before, after = (
        personal_model(plan.context(0, 3, newcomer=False), state, message(plan, 0, counted(plan, cores={1: v})))
        for v in (1.0, 3.0)
    )
    change = after["params"]["0.bias"] - before["params"]["0.bias"]
    assert torch.allclose(change, 2 * state["apple.relation"]["p"][1])


def test_before_it_trains_a_client_uses_the_weighted_mean_of_all_cores():
    plan = tiny_plan("apple", unseen=1)
    server = counted(plan, (1.0, 3.0, 0.0, 0.0, 0.0), {0: 4.0, 1: 8.0})
    ctx = plan.context(2, 0)
    for download in (message(plan, 2, server), message(plan, 5, server)):
        model = personal_model(ctx, first_client(ctx), download)
        assert torch.allclose(model["params"]["0.bias"], torch.full((6,), 7.0))


def test_with_its_own_core_as_prior_and_no_rate_of_relations_it_is_local_training():
    own, alone = (
        play_params(tiny_plan("apple(prior=own, lr_p=0)", norm=True)),
        play_params(tiny_plan("local", norm=True)),
    )
    assert all(torch.equal(leaf, alone[i][n]) for i, each in own.items() if i < 4 for n, leaf in each.items())


def test_an_unseen_client_is_sent_one_model_alone():
    plan = tiny_plan("apple", unseen=1)
    assert message(plan, 5, counted(plan)).keys() == {"params", "buffers"}


def test_all_cores_are_counted():
    plan = tiny_plan("apple")
    size = codec.size({"params": plan.tasks[0].net.params})
    assert codec.size(message(plan)) == 5 * size + 4 * (5 + 5)


# -- cores that are drawn anew --------------------------------------------------------------------------


@pytest.mark.parametrize("cap", ["", ", cap=2"])
def test_a_drawn_core_is_the_clients_own_and_everybody_has_the_same_of_it(cap):
    """What a client begins with is what others have of it, whether they were sent it or drew it themselves."""
    plan = tiny_plan(f"apple(start=drawn{cap})", norm=True)
    server, initial = counted(plan), plan.tasks[0].net.params
    works = [prepare(ctx := plan.context(i, 0), first_client(ctx), message(plan, i, server)) for i in range(5)]
    weights = [work["params"]["0.weight"] for work in works]
    assert len({tuple(leaf.flatten().tolist()) for leaf in (*weights, initial["0.weight"])}) == 6
    for work in works:
        assert torch.equal(work["apple.cores"]["0.weight"], torch.stack(weights))
        assert torch.equal(work["params"]["1.weight"], initial["1.weight"])  # a normalisation's scales are all one
    assert float(torch.stack(weights).std()) == pytest.approx(float(initial["0.weight"].std()), rel=0.2)
    other = tiny_plan("apple(start=drawn)", norm=True, seed=1)
    drawn = plan.method.first_core(plan.server(3), 2)["0.weight"]
    assert torch.equal(drawn, weights[2])
    assert not torch.equal(drawn, other.method.first_core(other.server(0), 2)["0.weight"])


@pytest.mark.parametrize("cap", ["", ", cap=2"])
def test_after_it_trained_a_drawn_core_is_what_was_trained(cap):
    plan = tiny_plan(f"apple(start=drawn{cap})")
    state = train(plan, 1, -1, None, message(plan, 1, counted(plan), round=-1)).state
    outcome = train(plan, 1, 0, state, message(plan, 1, counted(plan)))
    drawn = plan.method.first_core(plan.server(0), 1)
    moved = tree.norm(tree.sub(outcome.state["own"], drawn))
    assert 0 < moved < 0.1 * tree.norm(tree.sub(outcome.state["own"], plan.tasks[0].net.params))
    ctx = plan.context(1, 1, newcomer=False)
    work = prepare(ctx, outcome.state, message(plan, 1, counted(plan), round=1))
    assert all(torch.equal(leaf, outcome.state["own"][n]) for n, leaf in work["params"].items())


def test_an_unseen_client_gets_the_mean_of_drawn_cores_too():
    plan = tiny_plan("apple(start=drawn)", unseen=1)
    server = counted(plan, (1.0, 3.0, 0.0, 0.0, 0.0))
    first, second = (plan.method.first_core(plan.server(0), place)["0.weight"] for place in (0, 1))
    assert torch.allclose(message(plan, 5, server)["params"]["0.weight"], 0.25 * first + 0.75 * second, atol=1e-6)


# -- a cap ------------------------------------------------------------------------------------------


def test_a_cap_limits_what_is_sent():
    plan = tiny_plan("apple(cap=2)")
    sent = message(plan)
    assert len([slot for slot in sent if slot.startswith("apple.core/")]) == 2
    assert 0 not in sent["apple.ids"]["ids"]


def test_cores_that_are_not_sent_stay_as_last_seen():
    plan = tiny_plan("apple(cap=1)")
    ctx = plan.context(0, 0)
    server = counted(plan, cores={1: 1.0, 2: 2.0}) | {"apple.request@0": {"ids": torch.tensor([1])}}
    state = train(plan, 0, 0, None, message(plan, 0, server)).state
    server = counted(plan, cores={1: 10.0, 2: 20.0}) | {"apple.request@0": {"ids": torch.tensor([2])}}
    work = prepare(plan.context(0, 1, newcomer=False), state, message(plan, 0, server))
    initial = ctx.initial["params"]["0.bias"]
    cores = work["apple.cores"]["0.bias"]
    assert torch.equal(cores[1], torch.full((6,), 1.0))
    assert torch.equal(cores[2], torch.full((6,), 20.0))
    assert torch.equal(cores[3], initial)
    assert work["apple.seen"]["seen"].tolist() == [True, True, True, False, False]


def requested(plan, p, seen, round=0):
    work = {
        "apple.relation": {"p": torch.tensor(p)},
        "apple.me": {"here": torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])},
        "apple.seen": {"seen": torch.tensor(seen)},
    }
    return set(plan.method.request(plan.context(0, round), work).tolist())


def test_cores_never_seen_are_asked_for_first_then_those_of_high_relation():
    plan = tiny_plan("apple(cap=2, base=1e6)")
    p = [9.0, 0.0, 5.0, 0.0, -8.0]
    assert requested(plan, p, [True, False, True, False, True]) == {1, 3}
    assert requested(plan, p, [True] * 5) == {2, 4}


def test_cores_of_low_relation_have_their_chance():
    plan = tiny_plan("apple(cap=1)", rounds=30)
    asked = set().union(*(requested(plan, [1.0, 0.2, 0.1, 0.1, 0.1], [True] * 5, round) for round in range(30)))
    assert asked == {1, 2, 3, 4}


def test_the_set_up_round_does_not_count_as_having_seen_a_core():
    plan = tiny_plan("apple(cap=2)")
    state = train(plan, 0, -1, None, message(plan, round=-1)).state
    assert state["apple.seen"]["seen"].tolist() == [True, False, False, False, False]


def test_what_is_asked_for_is_what_comes_next():
    plan = tiny_plan("apple(cap=2)")
    server = counted(plan)
    upload = train(plan, 0, 0, None, message(plan, 0, server)).upload
    assert isinstance(upload, Upload)
    after = aggregate(plan.server(0), server, {0: upload})
    assert torch.equal(message(plan, 0, after)["apple.ids"]["ids"], upload.slots["apple.request"]["ids"])


@pytest.mark.parametrize("method", ["apple(lr_p=0)", "apple(lr_p=0, cap=3)"])
def test_a_single_client_trains_alone(method):
    """With p_0 = 1 and no others the personal model is the own core."""
    draw = torch.Generator().manual_seed(0)
    parts = {split: (torch.randn(8, 4, generator=draw), torch.arange(8) % 2) for split in ("train", "val", "test")}
    ours = run(method, Federation.from_clients([parts]), rounds=2).model(0)
    alone = run("local", Federation.from_clients([parts]), rounds=2).model(0)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), alone.parameters(), strict=True))


# -- errors and composition -----------------------------------------------------------------------------


def test_bad_options():
    check_bad_options(
        "apple", "lr_p=-1", "mu=-1", "until=2", "fading=never", "prior=none", "start=own", "cap=0", "base=0.5"
    )


def test_wrappers_that_act_on_one_model_are_refused():
    check_wrappers_refused("apple", "beside all others' cores")


@pytest.mark.parametrize("method", ["apple(cap=2)", "apple(start=drawn)", "finetune(apple)"])
def test_it_runs_with_normalisation_and_momentum(method):
    check_method(method, ["messages", "batchnorm", "momentum"])
