"""LG-Mix: every client follows a mixture of its own update and the averaged one."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.analysis import mixing_ratio
from idiolect.contract import Training, Wrapper, methods
from idiolect.core import tree
from idiolect.core.errors import ComposeError, ModelError, OptionError
from idiolect.data import Client, Federation
from idiolect.engines import Plan
from idiolect.engines.client_round import train
from idiolect.engines.phases import batches, fresh_optimizer
from idiolect.engines.slots import aggregate, first_client, first_server, gather, keep_and_send
from idiolect.task.optimizers import Adam
from idiolect.testing import check_method, play, tiny_federation, tiny_model, tiny_plan

# -- how the tests run it ------------------------------------------------------------------------------


def plan_of(method, module, clients, classes=None, rounds=1, epochs=1):
    """A plan for clients that have training data only."""
    none = torch.arange(0)
    members = [Client(f"c{i}", x, y, torch.arange(len(x)), none, none) for i, (x, y) in enumerate(clients)]
    data = Federation(tuple(members), "own", classes, "given", "0" * 12)
    task = Task(module, clients[0], classes=classes)
    return Plan(methods.build(method), (task,), data, rounds, Training(lr=0.1, epochs=epochs, batch_size=4))


def model_of(ctx, client, download):
    """A client's personal model."""
    return ctx.method.personal_model(ctx, gather(ctx, client, download, training=False))


def start_of(ctx, client, download):
    """A client's working slots before training."""
    return ctx.method.prepare(ctx, gather(ctx, client, download))


def body_and_head():
    """A body b and a head h, both scalars and 1: outputs h b x, features b x."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for leaf in module.parameters():
        nn.init.ones_(leaf)
    return module


def rounds_of(plan):
    """Round by round: the server's slots, the clients' slots, and every client's personal model."""
    method, states = plan.method, {}
    server = first_server(plan.server(0))
    for round in range(plan.rounds):
        ctx = plan.server(round)
        download = method.download(ctx, server, plan.participants(round))
        outcomes = {i: train(plan, i, round, states.get(i), download.of(i)) for i in plan.participants(round)}
        done = {i: each for i, each in outcomes.items() if each.upload is not None}
        states |= {i: each.state for i, each in done.items()}
        server = aggregate(ctx, server, {i: each.upload for i, each in done.items()}) if done else server
        sent, models = method.download(ctx, server, plan.data.seen), {}
        for i in plan.data.seen:
            where = plan.context(i, round, newcomer=i not in states)
            models[i] = model_of(where, states.get(i) or first_client(where), sent.of(i))
        yield server, dict(states), models


def flat(slots):
    return {**slots["params"], **slots["buffers"]}


def observe(plan, local, u, x, y, ratios=(0.5, 1.0), weight=None):
    """One step of a client whose own model is `local` while the server's is `u`: its slots and its upload."""
    ctx = plan.context(0, 0, newcomer=False)
    (phase,) = plan.method.phases(ctx)
    ctx = replace(ctx, phase=phase)
    client = first_client(ctx)
    total, count = map(torch.tensor, ratios)
    client |= {"lgmix.own": local, "lgmix.seen": tree.pick(u, client["lgmix.seen"])}
    client["lgmix.ratio"] = {"sum": total, "count": count, "newest": total}
    download = {slot: tree.pick(u, leaves) for slot, leaves in ctx.initial.items()}
    work = start_of(ctx, client, download)
    work = {**fresh_optimizer(ctx, work), **work, "log": {"loss": torch.zeros(()), "samples": torch.zeros(())}}
    work = phase.step(ctx, work, Batch(x, y, torch.ones(len(x)) if weight is None else weight))
    return keep_and_send(ctx, client, plan.method.finish(ctx, work))


def same(a, b, rtol=1e-5, atol=1e-6):
    return a.keys() == b.keys() and all(torch.allclose(leaf, b[n], rtol, atol) for n, leaf in a.items())


# -- the rule itself -----------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """Two clients of equal size start from 0 and train to 2 and to 4: u moves by (2 + 4) / 2 = 3.

    Client 0 has traces 4 (its own model) and 1 (the global one): lambda = 4 / 5, so by equation 2 it moves to
    0 + 0.8 * 2 + 0.2 * 3 = 2.2; client 1, traces 1 and 1, to 0.5 * 4 + 0.5 * 3 = 3.5. Then u moves on to 8 without
    them: by equation 2 with an own update of 0 they move to 2.2 + 0.2 * 5 = 3.2 and to 3.5 + 0.5 * 5 = 6.
    """
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    data = (torch.ones(2, 1), torch.ones(2, 1))
    plan = plan_of("lgmix", module, [data, data])
    method, states, uploads = plan.method, {}, {}
    server = first_server(plan.server(0))
    sent = method.download(plan.server(0), server, (0, 1))
    for i, (end, local) in enumerate([(2.0, 4.0), (4.0, 1.0)]):
        ctx = plan.context(i, 0)
        client = first_client(ctx)
        work = start_of(ctx, client, sent.of(i))
        work["params"] = {"weight": torch.tensor([[end]])}
        work["lgmix.trace"] = {"local": torch.tensor(local).double(), "global": torch.tensor(1.0).double()}
        states[i], uploads[i] = keep_and_send(ctx, client, method.finish(ctx, work))
    server = aggregate(plan.server(0), server, uploads)
    assert float(server["params"]["weight"]) == 3.0

    def model(i):
        newest = method.download(plan.server(0), server, (i,)).of(i)
        return float(model_of(plan.context(i, 0, newcomer=False), states[i], newest)["params"]["weight"])

    assert [model(0), model(1)] == pytest.approx([2.2, 3.5])
    server = {**server, "params": {"weight": torch.tensor([[8.0]])}}
    assert [model(0), model(1)] == pytest.approx([3.2, 6.0])


def test_features_of_norm_2_and_1_give_four_fifths():
    plan = plan_of("lgmix", body_and_head(), [(torch.ones(3, 1), torch.zeros(3, 1))])
    local, u = ({"0.weight": torch.tensor([[b]]), "1.weight": torch.ones(1, 1)} for b in (2.0, 1.0))
    state, _ = observe(plan, local, u, torch.ones(3, 1), torch.zeros(3, 1))
    assert float(state["lgmix.ratio"]["newest"]) == pytest.approx(0.8)
    assert float(plan.method.ratio(state)) == pytest.approx((0.5 + 0.8) / 2)


def test_the_ratio_used_is_the_mean_of_the_recorded_ones():
    plan = tiny_plan("lgmix", rounds=4)
    rows = [(row[0], row[1], row[5], row[6]) for row in play(plan).rows if row[3] == "state"]
    for client in plan.data.seen:
        used, raw = ([v for _, i, n, v in rows if (i, n) == (client, name)] for name in ("lambda", "lambda_newest"))
        assert len(raw) == 4
        assert used == pytest.approx([sum(raw[: t + 1]) / (t + 1) for t in range(4)])
        assert len(set(raw)) > 1


def test_without_history_the_newest_ratio_is_used():
    plan = tiny_plan("lgmix(history=false)")
    *_, (_, states, _) = rounds_of(plan)
    assert all(plan.method.ratio(state) is state["lgmix.ratio"]["newest"] for state in states.values())


def test_the_papers_mean_ends_with_the_round_before():
    """Ratios 0.8, 0.6, 0.1: in the first round there is only the newest, then 0.8, then (0.8 + 0.6) / 2."""
    method, used, sums = methods.build("lgmix(preset=paper)"), [], 0.0
    for count, newest in enumerate((0.8, 0.6, 0.1), start=1):
        sums += newest
        numbers = {"sum": sums, "count": float(count), "newest": newest}
        used.append(float(method.ratio({"lgmix.ratio": {n: torch.tensor(v) for n, v in numbers.items()}})))
    assert used == pytest.approx([0.8, 0.8, 0.7])


def test_unseen_clients_may_get_the_mean_of_all_personal_models():
    for norm in (False, True):
        plan = tiny_plan("lgmix(newcomers=mean)", unseen=1, norm=norm, rounds=2)
        *_, (server, states, models) = rounds_of(plan)
        trained = [models[i] for i in states]
        (unseen,) = set(range(len(plan.data.clients))) - set(plan.data.seen)
        ctx = plan.context(unseen, 1)
        sent = plan.method.download(plan.server(1), server, (unseen,)).of(unseen)
        model = model_of(ctx, first_client(ctx), sent)
        mean = tree.mean([each["params"] for each in trained], [1.0] * len(trained))
        assert same(model["params"], mean)
        assert not same(model["params"], server["params"])
        assert "lgmix.mean" not in plan.method.download(plan.server(1), server, (0,)).of(0)


def test_the_personal_models_average_to_the_global_one_if_all_ratios_are_equal():
    plan = tiny_plan("lgmix(fixed=0.3)")
    sizes = [float(plan.facts(i)[0]) for i in plan.data.seen]
    for server, _, models in rounds_of(plan):
        assert same(tree.mean([models[i]["params"] for i in plan.data.seen], sizes), server["params"])


# -- the neutral cases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("norm", [False, True])
def test_ratio_0_is_fedavg(participation, norm):
    changes = {"participation": participation, "norm": norm, "rounds": 4}
    runs = zip(
        rounds_of(tiny_plan("lgmix(fixed=0)", **changes)), rounds_of(tiny_plan("fedavg", **changes)), strict=True
    )
    for (server, _, models), (plain, _, _) in runs:
        assert same(server["params"], plain["params"])
        assert same(server["buffers"], plain["buffers"])
        assert all(same(model["params"], plain["params"]) for model in models.values())


@pytest.mark.parametrize("norm", [False, True])
def test_ratio_1_is_local_training_to_the_bit(norm):
    runs = zip(rounds_of(tiny_plan("lgmix(fixed=1)", norm=norm)), rounds_of(tiny_plan("local", norm=norm)), strict=True)
    for (_, states, models), (_, _, plain) in runs:
        for i in states:
            for name, leaf in flat(models[i]).items():
                assert torch.equal(leaf, flat(plain[i])[name]) or not leaf.is_floating_point()


def test_a_fixed_ratio_needs_no_pass_of_the_global_model():
    """Such a pass would draw from the random numbers of the dropout layers: local training would not be the same."""
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    module = nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3))
    ends = []
    for method in ("lgmix(fixed=1)", "local"):
        *_, (_, _, models) = rounds_of(plan_of(method, module, [(x, y)], classes=3, rounds=2))
        ends.append(models[0]["params"])
    assert all(torch.equal(leaf, ends[1][n]) for n, leaf in ends[0].items())


def test_with_one_client_the_ratio_does_not_matter():
    data = tiny_federation(clients=1)
    x, y = data.clients[0].split("train")
    task = Task(tiny_model(), (x, y), classes=3)
    ends = []
    for method in ("lgmix", "lgmix(fixed=0)", "lgmix(fixed=1)"):
        *_, (server, _, models) = rounds_of(
            Plan(methods.build(method), (task,), data, rounds=4, training=Training(lr=0.1))
        )
        assert same(models[0]["params"], server["params"])
        ends.append(server["params"])
    assert same(ends[0], ends[1])
    assert same(ends[0], ends[2])


# -- clients that miss rounds --------------------------------------------------------------------------


def test_a_client_without_history_uses_the_global_model():
    plan = tiny_plan("lgmix", participation=0.2, unseen=1, rounds=1)
    ((server, states, models),) = rounds_of(plan)
    never = [i for i in plan.data.seen if i not in states]
    assert len(never) == 4
    for i in never:
        assert all(torch.equal(leaf, server["params"][n]) for n, leaf in models[i]["params"].items())


def test_clients_never_start_from_the_global_model():
    plan = tiny_plan("lgmix", rounds=2)
    *_, (server, states, models) = rounds_of(plan)
    ctx = plan.context(0, 2, newcomer=False)
    work = start_of(ctx, states[0], plan.method.download(plan.server(2), server, (0,)).of(0))
    assert all(torch.equal(leaf, models[0]["params"][n]) for n, leaf in work["params"].items())
    assert not same(work["params"], server["params"])
    assert all(torch.equal(leaf, server["params"][n]) for n, leaf in work["lgmix.global"].items())


# -- the traces ----------------------------------------------------------------------------------------


def test_several_epochs_add_up_and_give_one_update():
    """b = h = 1, x = 1, y = 0, loss (h b)^2, learning rate 0.1: both gradients are 2, so b = h = 0.8 after the first
    epoch; then 2 * 0.8^3 = 1.024, so b = 0.6976. Local features 1 and 0.8, global 1 and 1: lambda = 1.64 / 3.64.
    """
    plan = plan_of("lgmix", body_and_head(), [(torch.ones(2, 1), torch.zeros(2, 1))], epochs=2)
    ((server, states, models),) = rounds_of(plan)
    assert float(states[0]["lgmix.ratio"]["newest"]) == pytest.approx(1.64 / 3.64)
    assert float(server["params"]["0.weight"]) == pytest.approx(0.6976)
    assert float(models[0]["params"]["0.weight"]) == pytest.approx(0.6976)


@pytest.mark.parametrize("centered", [False, True])
def test_the_sums_over_batches_give_the_ratio_of_all_samples(centered):
    plan = tiny_plan(f"lgmix(centered={centered})".lower(), lr=0.0, epochs=1)
    task = plan.tasks[0]
    ctx = plan.context(0, 0, newcomer=False)
    own = tree.map(lambda leaf: 1.3 * leaf + 0.1, task.initial["params"])
    once = {"sum": torch.tensor(0.5), "count": torch.tensor(1.0), "newest": torch.tensor(0.5)}
    client = {**first_client(ctx), "lgmix.own": own, "lgmix.ratio": once}
    state = train(plan, 0, 0, client, task.initial).state
    x, _ = plan.split(0, "train")
    features = [task.forward(params, {}, x).features for params in (own, task.initial["params"])]
    expected = float(mixing_ratio(*features, centered=centered))
    assert float(state["lgmix.ratio"]["newest"]) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(float(mixing_ratio(*features, centered=not centered)), rel=1e-2)


@pytest.mark.parametrize("options", ["", "centered=true"])
def test_padding_counts_for_nothing(options):
    x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 0.0]]), torch.zeros(3, 1)
    module = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))
    plan = plan_of(f"lgmix({options})", module, [(x, y)])
    local, u = ({"0.weight": torch.tensor([[b, 1.0]]), "1.weight": torch.ones(1, 1)} for b in (2.0, 1.5))
    padded, _ = observe(plan, local, u, x, y, weight=torch.tensor([1.0, 1.0, 0.0]))
    short, _ = observe(plan, local, u, x[:2], y[:2])
    whole, _ = observe(plan, local, u, x, y)
    assert same(padded["lgmix.ratio"], short["lgmix.ratio"])
    assert same(padded["lgmix.own"], short["lgmix.own"])
    assert not same(padded["lgmix.ratio"], whole["lgmix.ratio"])


@pytest.mark.parametrize("options", ["", "centered=true"])
def test_dead_features_give_one_half(options):
    x, y = torch.ones(3, 1), torch.zeros(3, 1)
    plan = plan_of(f"lgmix({options})", body_and_head(), [(x, y)])
    dead = {"0.weight": torch.zeros(1, 1), "1.weight": torch.ones(1, 1)}
    assert float(observe(plan, dead, dead, x, y)[0]["lgmix.ratio"]["newest"]) == 0.5


def test_one_sample_has_no_spread():
    """Its local features move from epoch to epoch, but that is no variation of the data: the ratio is 0.5."""
    plan = plan_of("lgmix(centered=true)", body_and_head(), [(torch.ones(1, 1), torch.zeros(1, 1))], epochs=3)
    ((_, states, _),) = rounds_of(plan)
    assert float(states[0]["lgmix.ratio"]["newest"]) == 0.5


@pytest.mark.parametrize("options", ["", "centered=true", "history=false"])
@pytest.mark.parametrize(("ratios", "expected"), [((0.0, 0.0), 0.5), ((2.1, 3.0), 0.7)])
def test_a_ratio_that_is_not_finite_is_the_mean_so_far(options, ratios, expected):
    plan = plan_of(f"lgmix({options})", body_and_head(), [(torch.ones(3, 1), torch.zeros(3, 1))])
    sums = {n: torch.tensor(math.inf).double() for n in ("local", "global", "local.sum", "global.sum", "samples")}
    before = dict(zip(("sum", "count", "newest"), map(torch.tensor, (*ratios, 0.0)), strict=True))
    assert float(plan.method.measure_ratio(plan.context(0, 0), sums, before)) == pytest.approx(expected)


PIXELS = torch.tensor([1.0, 3.0])


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(("pool", "ratio"), [("mean", 4 / 8), ("sum", 10 / 18)])
@pytest.mark.parametrize("kind", ["convolution", "tokens"])
def test_dense_features_are_averaged_over_positions_or_counted_one_by_one(kind, pool, ratio, centered):
    """Positions 1 and 3, two channels. The local model's first channel copies the input: mean 2, squared 4; one by one
    1 + 9 = 10. The global model's is 2 everywhere: squared 4; one by one 4 + 4 = 8. Centred, over two such samples,
    the global features do not vary; the local ones vary from position to position only.
    """
    if kind == "convolution":
        module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 3, 1))
        x, y = PIXELS.reshape(1, 1, 1, 2).repeat(2, 1, 1, 1), torch.zeros(2, 1, 2, dtype=torch.long)
    else:
        module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 3))
        x, y = PIXELS.reshape(1, 2, 1).repeat(2, 1, 1), torch.zeros(2, 2, dtype=torch.long)
    plan = plan_of(f"lgmix(pool={pool}, centered={centered})".lower(), module, [(x, y)], classes=3)
    start = plan.tasks[0].initial["params"]

    def body(weight, bias):
        first = {"0.weight": torch.tensor([weight, 0.0]), "0.bias": torch.tensor([bias, 0.0])}
        return {**start, **{n: leaf.reshape(start[n].shape) for n, leaf in first.items()}}

    state, _ = observe(plan, body(1.0, 0.0), body(0.0, 2.0), x, y)
    expected = (0.5 if pool == "mean" else 1.0) if centered else ratio
    assert float(state["lgmix.ratio"]["newest"]) == pytest.approx(expected)


def test_a_dense_model_trains():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    clients = [(x := torch.randn(6, 1, 4, 4) + i, (x[:, 0] > i).long()) for i in range(3)]
    for pool in ("mean", "sum"):
        plan = plan_of(f"lgmix(pool={pool}, centered=true)", module, clients, classes=2, rounds=3)
        *_, (_, states, models) = rounds_of(plan)
        assert all(0 < float(plan.method.ratio(state)) < 1 for state in states.values())
        assert not same(models[0]["params"], models[1]["params"])


# -- optimisers with state -----------------------------------------------------------------------------


def test_a_kept_optimizer_state_persists_while_the_weights_are_rewound():
    """With ratio 1 nothing is rewound in effect, so Adam with kept moments is one long run of Adam."""
    plan = tiny_plan("lgmix(fixed=1)", optimizer=Adam(), optimizer_state="keep", lr=0.01)
    *_, (_, states, models) = rounds_of(plan)
    task = plan.tasks[0]
    params, state = task.initial["params"], plan.training.optimizer.init(task.initial["params"])
    for round in range(plan.rounds):
        ctx = plan.context(0, round)
        (phase,) = plan.method.phases(ctx)
        for here, batch in batches(plan, replace(ctx, phase=phase), 0):
            grads = here.grad({"params": params, "buffers": {}}, "params", batch).tree
            params, state = plan.training.optimizer.step(params, grads, state, plan.training.lr)
    assert all(torch.equal(leaf, params[n]) for n, leaf in models[0]["params"].items())
    assert float(states[0]["params:count"]["0.weight"]) == 3 * 2 * 4  # rounds, epochs, batches


# -- normalisation -------------------------------------------------------------------------------------


def test_running_statistics_are_mixed_and_counters_are_copied():
    plan = tiny_plan("lgmix(fixed=0.25)", norm=True, rounds=1)
    ((server, _, models),) = rounds_of(plan)
    start = plan.tasks[0].initial["buffers"]
    trained = train(tiny_plan("local", norm=True, rounds=1), 0, 0, None, {}).state["private"]
    for name in ("1.running_mean", "1.running_var"):
        mixed = start[name] + 0.25 * (trained[name] - start[name]) + 0.75 * (server["buffers"][name] - start[name])
        assert torch.allclose(models[0]["buffers"][name], mixed, atol=1e-6)
    assert all(
        int(model["buffers"]["1.num_batches_tracked"]) == 8 for model in models.values()
    )  # client 0's, the largest


def test_running_variances_are_kept_as_they_are_and_cut_where_they_are_used():
    plan = tiny_plan("lgmix", norm=True)
    ctx = plan.context(0, 1, newcomer=False)
    client = first_client(ctx)
    name, shape = "1.running_var", plan.tasks[0].initial["buffers"]["1.running_var"].shape
    client["lgmix.own"] = {**client["lgmix.own"], name: torch.full(shape, 0.1)}
    client["lgmix.ratio"] = {n: torch.tensor(v) for n, v in (("sum", 0.5), ("count", 1.0), ("newest", 0.5))}

    def download(variance):
        return {**ctx.initial, "buffers": {**ctx.initial["buffers"], name: torch.full(shape, variance)}}

    assert float(model_of(ctx, client, download(0.0))["buffers"][name].max()) == 0.0  # 0.1 + 0.5 (0 - 1) < 0
    assert torch.allclose(model_of(ctx, client, download(1.2))["buffers"][name], torch.tensor(0.2))
    work = start_of(ctx, client, download(-0.5))
    assert float(work["buffers"][name].max()) == float(work["lgmix.global.buffers"][name].max()) == 0.0
    assert float(work["lgmix.seen"][name].max()) == -0.5


def test_features_of_both_models_are_taken_in_one_mode_so_that_equal_models_count_alike():
    """In the first round both models are the same; on one batch only the authors' program sees them differ."""
    ratios = {}
    for options in ("", "feature_mode=train", "feature_mode=eval", "feature_mode=mixed", "preset=ref"):
        plan = tiny_plan(f"lgmix({options})", norm=True, batch_size=14, epochs=1)
        outcome = train(plan, 0, 0, None, plan.tasks[0].initial)
        ratios[options] = float(outcome.state["lgmix.ratio"]["newest"])
    assert ratios[""] == ratios["feature_mode=train"] == ratios["feature_mode=eval"] == 0.5
    assert ratios["feature_mode=mixed"] != 0.5
    assert ratios["preset=ref"] != 0.5


def test_in_evaluation_mode_running_statistics_give_the_features():
    """One batch x = 0, 2 under a running mean of 1 and variance 4 (own) or 1 (global): features (x - 1) / 2, x - 1,
    traces 1/2 and 2, and a ratio of 1/5; batch statistics would give both models the features -1 and 1."""
    module = nn.Sequential(nn.BatchNorm1d(1, eps=1e-12, affine=False), nn.Linear(1, 1, bias=False))
    x, y = torch.tensor([[0.0], [2.0]]), torch.zeros(2, 1)
    counts = {"0.num_batches_tracked": torch.tensor(1), "1.weight": torch.ones(1, 1)}
    local, u = ({"0.running_mean": torch.ones(1), "0.running_var": torch.tensor([v]), **counts} for v in (4.0, 1.0))
    for mode, ratio in (("eval", 0.2), ("train", 0.5), ("mixed", 0.5)):
        state, _ = observe(plan_of(f"lgmix(feature_mode={mode})", module, [(x, y)]), local, u, x, y)
        assert float(state["lgmix.ratio"]["newest"]) == pytest.approx(ratio), mode


@pytest.mark.parametrize("policy", [{"norm_stats": "local"}, {"norm_affine": "local"}])
def test_what_the_run_keeps_local_is_neither_mixed_nor_sent(policy):
    plan = tiny_plan("lgmix(fixed=0)", norm=True, rounds=2, **policy)
    kept = plan.context(0, 0).private_names
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0)
    outcome = train(plan, 0, 0, None, download)
    assert kept
    assert not kept & (outcome.upload.slots["lgmix.delta"].keys() | flat(download).keys())
    *_, (server, _, models) = rounds_of(plan)
    for name, leaf in flat(server).items():
        if name in kept:
            assert torch.equal(leaf, flat(plan.tasks[0].initial)[name])
        elif leaf.is_floating_point():
            assert torch.allclose(flat(models[0])[name], leaf, atol=1e-6)
    assert all(not torch.equal(flat(models[0])[n], flat(models[1])[n]) for n in kept if "num" not in n)


@pytest.mark.parametrize("policy", [{}, {"norm_stats": "local"}, {"norm_affine": "local"}])
def test_a_clients_slots_have_the_same_names_and_shapes_from_the_start(policy):
    plan = tiny_plan("lgmix(centered=true)", norm=True, optimizer=Adam(), **policy)
    ctx = plan.context(0, 0)
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0)

    def shapes(slots):
        return {(s, n): (leaf.shape, leaf.dtype) for s, leaves in slots.items() for n, leaf in leaves.items()}

    assert shapes(first_client(ctx)) == shapes(train(plan, 0, 0, None, download).state)


# -- messages, options, composition --------------------------------------------------------------------


def test_only_the_update_and_the_number_of_samples_leave_a_client():
    plan = tiny_plan("lgmix", norm=True)
    outcome = train(plan, 0, 0, None, plan.tasks[0].initial)
    assert set(outcome.upload.slots) == {"lgmix.delta", "weight"}
    assert outcome.upload.slots["lgmix.delta"].keys() == flat(plan.tasks[0].initial).keys()


def test_to_leave_out_missed_updates_a_client_also_gets_the_model_its_last_round_led_to():
    plan = tiny_plan("lgmix(missed=ignore)", participation=0.4, rounds=3)
    after = {}
    for round, (server, states, _) in enumerate(rounds_of(plan)):
        after |= dict.fromkeys(plan.participants(round), server["params"])
        sent = plan.method.download(plan.server(round), server, plan.data.seen)
        assert {i for i in plan.data.seen if "lgmix.after" in sent.of(i)} == states.keys()
        assert all(same(sent.of(i)["lgmix.after"], after[i]) for i in states)


def test_the_servers_learning_rate_scales_the_averaged_update():
    starts = tiny_plan("lgmix").tasks[0].initial["params"]
    moved = {}
    for rate in (1.0, 0.5):
        ((server, _, _),) = rounds_of(tiny_plan(f"lgmix(server_lr={rate})", rounds=1))
        moved[rate] = tree.sub(server["params"], starts)
    assert same(moved[0.5], tree.scale(moved[1.0], 0.5))


@pytest.mark.parametrize(
    "options", ["fixed=1.5", "fixed=-0.1", "missed=never", "feature_mode=test", "pool=max", "server_lr=0", "centered=3"]
)
def test_a_wrong_option_says_what_is_allowed(options):
    name = options.partition("=")[0]
    with pytest.raises(OptionError, match=f"lgmix: {name}=.* is not allowed; {name} must"):
        methods.build(f"lgmix({options})")


def test_presets():
    assert methods.build("lg-mix(preset=paper)") == methods.build("lgmix(include_newest=false)")
    assert methods.build("lgmix(preset=ref)") == methods.build("lgmix(centered=true, feature_mode=mixed)")
    assert methods.build("lgmix(preset=ref, centered=false)") == methods.build("lgmix(feature_mode=mixed)")


class Cosine(nn.Module):
    """A last layer that does not say how many features enter it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 5))

    def forward(self, x):
        return x @ self.weight.T


def test_centring_needs_to_know_the_number_of_features():
    x, y = torch.zeros(2, 4), torch.tensor([0, 1])
    task = Task(nn.Sequential(nn.Linear(4, 5), Cosine()), (x, y), classes=3)
    methods.build("lgmix").check(task)
    with pytest.raises(ModelError, match="centered=true needs the number of features that enter the last layer '1'"):
        methods.build("lgmix(centered=true)").check(task)


class Outer(Wrapper):
    """A wrapper that acts on the federated model."""

    name = "outer"


def test_wrappers_that_act_on_the_federated_model_are_refused():
    with pytest.raises(ComposeError, match="outer cannot wrap lgmix: its clients never start from the global model"):
        Outer(methods.build("lgmix"))
    assert methods.build("finetune(lgmix)").inner == methods.build("lgmix")


@pytest.mark.parametrize("check", ["messages", "resume", "poison"])
def test_leaving_out_missed_updates_keeps_the_contract(check):
    check_method("lgmix(missed=ignore)", [check])
