"""FedLAG: the layers that clients pull apart become personal, all others come from the server."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from idiolect.analysis import cosine_matrix, sketch
from idiolect.contract import Method, Needs, Phase, Task, Training, Upload, methods
from idiolect.core import codec, tree
from idiolect.core.errors import ComposeError, ModelError, OptionError
from idiolect.data import Client
from idiolect.engines import Loop, Plan
from idiolect.engines.client_round import train
from idiolect.engines.phases import batches
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.fedlag import FedLAG
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.task.schedules import schedules
from idiolect.testing import check_bad_options, play, play_params, tiny_federation, tiny_plan
from idiolect.testing.scalar import context_of
from idiolect.testing.tiny import personal_models

E = torch.eye(3)


class TwoScalars(nn.Module):
    """a x1 + b x2, two layers of one number each, both 0."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.a.weight)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.a(x[:, :1]) + self.b(x[:, 1:])


def scalar_plan(method: str, samples, rounds: int = 3) -> Plan:
    """One client per sample ((x1, x2), y), and one step of learning rate 1/2 on its squared error per round.

    A step then moves (a, b) by (y - a x1 - b x2) (x1, x2).
    """
    clients = []
    for i, (x, y) in enumerate(samples):
        every = torch.arange(3).split(1)
        clients.append(Client(f"c{i}", torch.tensor([x] * 3), torch.full((3, 1), y), *every))
    data = replace(tiny_federation(3), clients=tuple(clients), classes=None, public=None)
    task = Task(TwoScalars(), data.clients[0].split("train"))
    return Plan(methods.build(method), (task,), data, rounds, Training(lr=0.5, batch_size=1))


def vector_plan(method: str, rounds: int = 4) -> Plan:
    """A model of two layers, A and B, of three numbers each, all 0."""
    module = nn.Sequential()
    module.add_module("A", nn.Linear(3, 1, bias=False))
    module.add_module("B", nn.Linear(1, 3, bias=False))
    for leaf in module.parameters():
        nn.init.zeros_(leaf)
    plan = tiny_plan(methods.build(method), rounds=rounds)
    return replace(plan, tasks=(Task(module, (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)), classes=3),))


def upload(a, b, start=(0.0, 0.0), say: str = "") -> Upload:
    """A client that moved A and B from `start` by a and b; it also says the updates of the layers in `say`."""
    params = {"A.weight": (a + start[0]).reshape(1, 3), "B.weight": (b + start[1]).reshape(3, 1)}
    update = {"A.weight": a.reshape(1, 3), "B.weight": b.reshape(3, 1)}
    mask = {n: torch.full_like(leaf, n[0] in say, dtype=torch.bool) for n, leaf in update.items()}
    slots = {"params": params, "buffers": {}, "weight": {"samples": torch.tensor(1.0)}, "fedlag.update": update}
    return Upload(slots, {"fedlag.update": mask})


def conflicts(plan: Plan, server) -> dict[str, float]:
    records = plan.method.server_records(plan.server(0), server)
    return {name.partition("/")[2]: each for name, each in records.items() if name.startswith("conflicts/")}


def personal(plan: Plan, server) -> set[str]:
    records = plan.method.server_records(plan.server(0), server)
    return {name.partition("/")[2] for name, each in records.items() if name.startswith("personal/") and each}


def judged(plan: Plan, uploads, round: int = 0, server=None):
    """The server's slots after a round with these uploads."""
    server = server or first_server(plan.server(0))
    return aggregate(plan.server(round), server, dict(enumerate(uploads)))


def do_round(plan: Plan, round: int, server, states, ids=None):
    """One round: the server's slots after it, the clients' states and the uploads."""
    ids = list(plan.data.seen) if ids is None else ids
    download = plan.method.download(plan.server(round), server, ids)
    outcomes = {i: train(plan, i, round, states.get(i), download.of(i)) for i in ids}
    uploads = {i: each.upload for i, each in outcomes.items() if each.upload is not None}
    after = aggregate(plan.server(round), server, uploads)
    return after, {**states, **{i: outcomes[i].state for i in uploads}}, uploads


def rounds_of(plan: Plan, count: int, ids=None):
    server, states, uploads = first_server(plan.server(0)), {}, {}
    for round in range(count):
        server, states, uploads = do_round(plan, round, server, states, ids)
    return server, states, uploads


def model_of(plan: Plan, server, states, index: int, round: int = 0):
    """A client's personal model."""
    download = plan.method.download(plan.server(round), server, plan.data.seen).of(index)
    ctx = plan.context(index, round, newcomer=index not in states)
    client = states.get(index) or first_client(ctx)
    return plan.method.personal_model(ctx, gather(ctx, client, download, training=False))


def with_personal(plan: Plan, server, chosen: set[str]):
    """The server's slots, if it had chosen these layers."""
    return {**server, "fedlag.personal": {unit: torch.tensor(unit in chosen) for unit in server["fedlag.personal"]}}


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(leaf, b[name]) for name, leaf in a.items())


@dataclass(frozen=True)
class Fixed(FedLAG):
    """FedLAG whose server has chosen the last layer before the first round, and never chooses again."""

    name = "fixed"

    def none_personal(self, ctx):
        units = list(self.units(ctx))
        return {unit: torch.tensor(unit == units[-1]) for unit in units}


# -- the worked examples and the oracles ------------------------------------------------------------------


def test_the_hand_worked_example():
    """Samples ((1, 1), 1), ((1, 2), 1), ((1, -3), -1) move (a, b) from (0, 0) to (1, 1), (1, 2) and (-1, 3).

    In a the third client opposes both others, in b nobody opposes anybody; so a is personal, b is (1 + 2 + 3) / 3
    = 2 and the average of a, which newcomers get, is 1/3. In the second round the errors at (1, 2), (1, 2) and
    (-1, 2) are 1 - 3 = -2, 1 - 5 = -4 and -1 + 7 = 6, so a moves by -2, -4, 6 to -1, -3, 5 and b by -2, -8, -18
    to 0, -6, -16: again only a has conflicts, two of them, b is -22/3 and the average of a is again 1/3.
    """
    plan = scalar_plan("fedlag(k=1, xi=0, warmup=0)", [((1.0, 1.0), 1.0), ((1.0, 2.0), 1.0), ((1.0, -3.0), -1.0)])
    server, states, _ = do_round(plan, 0, first_server(plan.server(0)), {})
    assert conflicts(plan, server) == {"a": 2, "b": 0}
    assert personal(plan, server) == {"a"}
    assert server["params"]["a.weight"].item() == pytest.approx(1 / 3)
    held = [tree.flatten(model_of(plan, server, states, i)["params"]).tolist() for i in range(3)]
    assert held == [[1, 2], [1, 2], [-1, 2]]

    server, states, uploads = do_round(plan, 1, server, states)
    assert [each.slots["fedlag.update"]["a.weight"].item() for each in uploads.values()] == [-2, -4, 6]
    assert conflicts(plan, server) == {"a": 2, "b": 0}
    held = [tree.flatten(model_of(plan, server, states, i)["params"]) for i in range(3)]
    assert torch.allclose(torch.stack(held), torch.tensor([[-1, -22 / 3], [-3, -22 / 3], [5, -22 / 3]]))
    assert server["params"]["a.weight"].item() == pytest.approx(1 / 3)


def test_the_gains_that_the_theory_predicts_are_recorded():
    """In the example above a moves by 1, 1, -1 and b by 1, 2, 3, with means 1/3 and 2.

    Lemma 5.1, h (h - mean): 2/3, 2/3, 4/3 in a, where all gain, and -1, 0, 3 in b, where one of three does. Lemma 5.2,
    their means: 8/9 and 2/3. Theorem 5.3 with E = 1 and a learning rate of 1/2: A = -1/4; a alone is personal, so the
    bound rises by 1/4 times 3^2 times 8/9 = 2. Nothing is personal before, and nothing is added then.
    """
    plan = scalar_plan("fedlag(k=1, xi=0, warmup=0)", [((1.0, 1.0), 1.0), ((1.0, 2.0), 1.0), ((1.0, -3.0), -1.0)])
    first = first_server(plan.server(0))
    names = ("gain/a", "gain/b", "gainers/a", "gainers/b", "bound_least", "bound_most")
    before = plan.method.server_records(plan.server(0), first)
    assert [before[name] for name in names] == [0.0] * 6
    server, _, _ = do_round(plan, 0, first, {})
    records = plan.method.server_records(plan.server(0), server)
    assert [records[name] for name in names] == pytest.approx([8 / 9, 2 / 3, 1.0, 1 / 3, 2.0, 2.0])
    none = scalar_plan("fedlag(k=0, xi=0)", [((1.0, 1.0), 1.0), ((1.0, 2.0), 1.0), ((1.0, -3.0), -1.0)])
    server, _, _ = do_round(none, 0, first_server(none.server(0)), {})
    records = none.method.server_records(none.server(0), server)
    assert [records[name] for name in names] == pytest.approx([8 / 9, 2 / 3, 1.0, 1 / 3, 0.0, 0.0])


def test_nobody_gains_where_all_move_alike():
    """Own and mean update are then the same, but for round-off."""
    plan = vector_plan("fedlag(k=1, xi=0, warmup=0)")
    for size in (0.1, 0.3, 0.7, 1.1):
        for clients in (3, 5, 7):
            same = size * torch.tensor([1.0, 2.0, 3.0])
            server = judged(plan, [upload(same, same)] * clients)
            records = plan.method.server_records(plan.server(0), server)
            assert [records["gainers/A"], records["gainers/B"]] == [0.0, 0.0]


def test_what_the_bound_gains_lies_between_the_ends_that_admissible_rates_have():
    """E = 2, learning rate 1/10, halved in the second round: A lies in (-0.0175, -0.0133), then in a quarter of it."""
    plan = tiny_plan(
        "fedlag(warmup=0, xi=0, allow_zero=true)", rounds=2, schedule=schedules.build("exponential(gamma=0.5)")
    )
    server, states = first_server(plan.server(0)), {}
    for round, share in enumerate((1.0, 0.25)):
        server, states, _ = do_round(plan, round, server, states)
        (unit,) = personal(plan, server)
        records = plan.method.server_records(plan.server(round), server)
        total = 25 * records[f"gain/{unit}"]
        assert records["bound_least"] == pytest.approx(share * 0.04 / 3 * total)
        assert records["bound_most"] == pytest.approx(share * 0.0175 * total)


def test_opposed_updates_conflict_and_orthogonal_ones_do_not():
    plan = vector_plan("fedlag(k=1, xi=0, warmup=0)")
    server = judged(plan, [upload(E[0], E[0]), upload(E[0], E[1]), upload(-E[0], E[2])])
    assert conflicts(plan, server) == {"A": 2, "B": 0}
    assert personal(plan, server) == {"A"}


def test_a_cosine_above_the_threshold_is_no_conflict():
    plan = vector_plan("fedlag(k=1, xi=-0.1, warmup=0)")
    server = judged(plan, [upload(E[0], E[0]), upload(E[1], E[1] - 0.05 * E[0]), upload(E[2], E[2])])
    assert conflicts(plan, server) == {"A": 0, "B": 0}
    assert personal(plan, server) == set()


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_updates_of_any_size_have_finite_scores(size):
    plan = vector_plan("fedlag(k=1, xi=0, warmup=0)")
    server = judged(plan, [upload(size * E[0], E[0]), upload(-E[0], E[1]), upload(-E[0], E[2])])
    assert conflicts(plan, server) == {"A": 2 if size else 0, "B": 0}


def test_without_personal_layers_it_is_fedavg_to_the_bit_and_to_the_byte():
    for changes in ({}, {"participation": 0.4}, {"norm": True}):
        measured, plain = play(tiny_plan("fedlag(k=0)", **changes)), play(tiny_plan("fedavg", **changes))
        assert equal(measured.server["params"], plain.server["params"])
        assert equal(measured.server["buffers"], plain.server["buffers"])
    spent = []
    for method in ("fedlag(k=0)", "fedavg"):
        store, plan = Store(None), tiny_plan(method)
        RoundLoop(plan, Loop(plan), store).run()
        spent.append((store.fact("bytes_up"), store.fact("bytes_down")))
    assert spent[0] == spent[1]


@pytest.mark.filterwarnings("ignore:fedlag. with k=3")
def test_with_all_layers_personal_it_is_local_training():
    alone = play_params(tiny_plan("local"))
    every = play_params(tiny_plan("fedlag(k=3, allow_zero=true, warmup=0)"))
    assert all(equal(model, alone[i]) for i, model in every.items())


@pytest.mark.filterwarnings("ignore:fedlag. with k=3")
def test_with_all_layers_and_their_normalisation_personal_it_is_local_training():
    alone = play(tiny_plan("local", norm=True))
    plan = tiny_plan("fedlag(k=3, allow_zero=true, warmup=0, attach_norm=preceding)", norm=True)
    every = play(plan)
    for index in range(4):  # the fifth client has a single sample, which batch normalisation cannot train on
        model = model_of(plan, every.server, every.clients, index)
        assert equal({**model["params"], **model["buffers"]}, alone.clients[index]["private"])


def test_with_the_head_personal_throughout_it_is_fedper():
    fixed, fedper = play_params(tiny_plan(Fixed(schedule="static"))), play_params(tiny_plan("fedper"))
    assert all(equal(model, fedper[i]) for i, model in fixed.items())


def test_the_last_layer_fixed_is_fedper_and_all_fixed_is_local_training():
    fedper, alone = play_params(tiny_plan("fedper")), play_params(tiny_plan("local"))
    last = play_params(tiny_plan("fedlag(choose=last, k=1, warmup=0)"))
    every = play_params(tiny_plan("fedlag(preset=then_local, warmup=0)"))
    assert all(equal(model, fedper[i]) for i, model in last.items())
    assert all(equal(model, alone[i]) for i, model in every.items())


class Counts(nn.Module):
    """It counts the batches that it has seen in training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return x


@pytest.mark.parametrize("granularity", ["module", "tensor", "block"])
def test_after_the_warm_up_then_local_leaves_nothing_of_the_model_to_the_server(granularity):
    """A normalisation before all layers, and buffers of a module without parameters, are each client's own too."""
    plans = []
    for method in ("local", f"fedlag(preset=then_local, warmup=0, granularity={granularity})"):
        body = nn.Sequential(nn.Linear(4, 5), Counts(), nn.BatchNorm1d(5))
        plan = tiny_plan(method)
        x, y = plan.data.clients[0].split("train")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            body[0].reset_parameters()
            module = nn.Sequential(nn.BatchNorm1d(4), Counts(), body, nn.ReLU(), nn.Linear(5, 3))
        plans.append(replace(plan, tasks=(Task(module, (x[:2], y[:2]), classes=3),)))
    alone, then = (personal_models(plan, play(plan)) for plan in plans)
    for index in range(4):  # the fifth client has a single sample, which batch normalisation cannot train on
        for slot in ("params", "buffers"):
            assert equal(then[index][slot], alone[index][slot])


def test_fedavg_then_local():
    """In the warm-up of two rounds the models are FedAvg's; a third round trains each on its own from there."""
    average = play(tiny_plan("fedavg", rounds=2)).server["params"]
    plan = tiny_plan("fedlag(preset=then_local, warmup=2)", rounds=4)
    server, states, _ = rounds_of(plan, 2)
    assert equal(server["params"], average)
    assert all(equal(model_of(plan, server, states, i)["params"], average) for i in plan.data.seen)
    server, states, _ = do_round(plan, 2, server, states)
    before = {i: model_of(plan, server, states, i, 2)["params"] for i in plan.data.seen}
    assert not equal(before[0], before[1])
    server, after, _ = do_round(plan, 3, server, states)
    trained = train(plan, 0, 3, states[0], {**plan.method.download(plan.server(3), server, (0,)).of(0)}).state
    assert equal(trained["fedlag.own"], after[0]["fedlag.own"])


def test_a_fixed_choice_takes_its_layers_on_any_inner_method_and_sends_no_updates():
    for inner, place, expected in (
        ("fedavg", "first", {"0"}),
        ("fedavg", "middle", {"2"}),
        ("fedprox", "last", {"4"}),
        ("ditto", "all", {"0", "2", "4"}),
    ):
        plan = tiny_plan(f"fedlag({inner}, choose={place}, k=1, warmup=1)")
        server, states, _ = rounds_of(plan, 1)
        assert not personal(plan, server)
        server, _, uploads = do_round(plan, 1, server, states)
        assert personal(plan, server) == expected
        assert "fedlag.update" not in uploads[0].slots
        assert not plan.method.refuses.summing


def test_a_server_that_keeps_the_models_chooses_alike_without_any_update_sent():
    kept, sent = (tiny_plan(f"fedlag(warmup=0, xi=0, server_models={each})", rounds=4) for each in ("true", "false"))
    ends = []
    for plan in (kept, sent):
        server, states, found = first_server(plan.server(0)), {}, []
        for round in range(4):
            server, states, uploads = do_round(plan, round, server, states)
            found.append((conflicts(plan, server), personal(plan, server)))
        ends.append((found, server["params"], uploads[0]))
    assert ends[0][0] == ends[1][0]
    assert equal(ends[0][1], ends[1][1])
    assert not any(masked(ends[0][2]).values())
    assert any(masked(ends[1][2]).values())
    assert kept.method.needs.server_models
    with pytest.raises(ComposeError, match="server_models=true is not allowed around flayer"):
        methods.build("fedlag(flayer, server_models=true)")


# -- what clients start from, and what they hold ---------------------------------------------------------------


def test_at_the_start_everything_but_personal_layers_is_the_servers():
    plan = tiny_plan("fedlag(warmup=0)")
    server, states, _ = rounds_of(plan, 2)
    server = {**server, "params": tree.map(lambda leaf: leaf + 1.0, server["params"])}
    (chosen,) = personal(plan, server)
    download = plan.method.download(plan.server(2), server, (0,)).of(0)
    ctx = plan.context(0, 2, newcomer=False)
    work = plan.method.prepare(ctx, gather(ctx, states[0], download))
    for name, leaf in work["params"].items():
        expected = states[0]["fedlag.own"][name] if name.startswith(f"{chosen}.") else server["params"][name]
        assert torch.equal(leaf, expected), name
    assert not torch.equal(states[0]["fedlag.own"][f"{chosen}.weight"], server["params"][f"{chosen}.weight"])


def test_after_a_round_all_clients_agree_outside_personal_layers():
    plan = tiny_plan("fedlag(warmup=0, allow_zero=true)", participation=0.6)
    played = play(plan)
    (chosen,) = personal(plan, played.server)
    held = [model_of(plan, played.server, played.clients, i)["params"] for i in plan.data.seen if played.clients[i]]
    assert len(held) > 2
    for name, leaf in played.server["params"].items():
        same = [torch.equal(each[name], leaf) for each in held]
        assert not any(same) if name.startswith(f"{chosen}.") else all(same), name


def test_every_layer_is_averaged_personal_or_not():
    plan = tiny_plan("fedlag(warmup=0)")
    server, states, _ = rounds_of(plan, 1)
    after, _, uploads = do_round(plan, 1, server, states)
    trees = [each.slots["params"] for each in uploads.values()]
    assert equal(after["params"], tree.mean(trees, [each.weight for each in uploads.values()]))


def test_a_client_that_joins_late_starts_from_the_average_and_then_has_its_own():
    plan = tiny_plan("fedlag(warmup=0)")
    server, states, _ = rounds_of(plan, 2, ids=[0, 1, 2])
    assert personal(plan, server)
    download = plan.method.download(plan.server(2), server, (3,)).of(3)
    newcomer = plan.context(3, 2, newcomer=True)
    work = gather(newcomer, first_client(newcomer), download)
    assert equal(plan.method.prepare(newcomer, work)["params"], server["params"])
    assert equal(model_of(plan, server, states, 3, round=2)["params"], server["params"])
    after, states, _ = do_round(plan, 2, server, states, ids=[0, 1, 2, 3])
    after = with_personal(plan, after, {"4"})
    own = states[3]["fedlag.own"]
    assert equal(tree.pick(model_of(plan, after, states, 3)["params"], ["4.weight"]), tree.pick(own, ["4.weight"]))


def test_a_layer_that_flips_takes_the_average_or_the_clients_own_last_value():
    plan = tiny_plan("fedlag(warmup=0)")
    server, states, _ = rounds_of(plan, 2)
    shared, own = server["params"]["2.weight"], states[0]["fedlag.own"]["2.weight"]
    for chosen, expected in ((set(), shared), ({"2"}, own), ({"4"}, shared)):
        model = model_of(plan, with_personal(plan, server, chosen), states, 0)
        assert torch.equal(model["params"]["2.weight"], expected)


def test_an_absent_client_keeps_its_own_values_and_takes_the_newest_choice():
    plan = tiny_plan("fedlag(warmup=0)")
    server, states, _ = rounds_of(plan, 1)
    before = states[4]["fedlag.own"]
    after, states, _ = do_round(plan, 1, server, states, ids=[0, 1])
    model = model_of(plan, with_personal(plan, after, {"0"}), states, 4)["params"]
    assert torch.equal(model["0.weight"], before["0.weight"])
    assert torch.equal(model["4.weight"], after["params"]["4.weight"])


def test_an_unseen_client_gets_the_average_of_all_layers_and_fine_tunes_it():
    plan = tiny_plan("fedlag(warmup=0)", unseen=1)
    server, _, _ = rounds_of(plan, 2)
    assert personal(plan, server)
    assert equal(model_of(plan, server, {}, 5, round=2)["params"], server["params"])
    assert [phase.name for phase in plan.method.onboard(plan.context(5, 2))] == ["onboard"]


@dataclass(frozen=True)
class Prepared(Method):
    """FedAvg with a round of set-up."""

    needs = Needs(setup_rounds=1)


def test_set_up_is_not_training():
    plan = tiny_plan(FedLAG(Prepared(), warmup=0))
    server = first_server(plan.server(-1))
    server, states, _ = do_round(plan, -1, server, {})
    assert conflicts(plan, server) == {"0": 0, "2": 0, "4": 0}
    model = model_of(plan, with_personal(plan, server, {"4"}), states, 0)
    assert equal(model["params"], server["params"])


# -- what is sent -----------------------------------------------------------------------------------------------


def masked(upload: Upload) -> dict[str, bool]:
    """Which leaves of the update are sent; every leaf is sent whole or not at all."""
    mask = upload.masks["fedlag.update"]
    assert all(bool(leaf.all()) == bool(leaf.any()) for leaf in mask.values())
    return {name: bool(leaf.any()) for name, leaf in mask.items()}


def test_the_update_is_sent_of_personal_layers_only():
    plan = tiny_plan("fedlag(warmup=1)")
    server, states, uploads = rounds_of(plan, 1)
    first, plain = uploads[0], {slot: each for slot, each in uploads[0].slots.items() if slot != "fedlag.update"}
    assert not any(masked(first).values())
    assert codec.size(first.slots, first.masks) == codec.size(plain)
    server, states, _ = do_round(plan, 1, server, states)
    (chosen,) = personal(plan, server)
    _, after, uploads = do_round(plan, 2, server, states)
    last = uploads[0]
    assert {name for name, sent in masked(last).items() if sent} == {f"{chosen}.weight", f"{chosen}.bias"}
    own = sum(leaf.numel() for name, leaf in last.slots["params"].items() if name.startswith(f"{chosen}."))
    assert codec.size(last.slots, last.masks) == codec.size(plain) + 4 * own
    for name, leaf in last.slots["fedlag.update"].items():
        start = states[0]["fedlag.own"] if name.startswith(f"{chosen}.") else server["params"]
        assert torch.equal(leaf, after[0]["fedlag.own"][name] - start[name])


def test_the_server_scores_personal_layers_by_the_updates_that_clients_say():
    """Own values 3, 3 and -3 all move by 1: minus the average 1 that the server sent, they would seem opposed."""
    plan = vector_plan("fedlag(k=1, xi=0, warmup=0)")
    server = first_server(plan.server(0))
    server = {**server, "params": {**server["params"], "A.weight": torch.ones(1, 3)}}
    held = [torch.full((3,), value) for value in (3.0, 3.0, -3.0)]
    told = judged(plan, [upload(torch.ones(3), E[i], (own, 0.0), say="A") for i, own in enumerate(held)], server=server)
    assert conflicts(plan, told) == {"A": 0, "B": 0}
    untold = judged(plan, [upload(torch.ones(3), E[i], (own, 0.0)) for i, own in enumerate(held)], server=server)
    assert conflicts(plan, untold) == {"A": 2, "B": 0}


def test_the_last_gradient_is_that_of_the_models_last_step():
    ids = [3]  # three samples: one step per epoch
    for inner in ("fedavg", "ditto(epochs=2)"):
        plan = tiny_plan(f"fedlag({inner}, signal=last_grad)", epochs=1)
        _, _, uploads = rounds_of(plan, 1, ids)
        moved = tree.sub(uploads[3].slots["params"], plan.tasks[0].initial["params"])
        for name, leaf in uploads[3].slots["fedlag.update"].items():
            assert torch.allclose(-0.1 * leaf, moved[name], atol=1e-7)
    plan = tiny_plan("fedlag(signal=last_grad)")
    _, _, uploads = rounds_of(plan, 1, [0])
    assert "fedlag.update" not in uploads[0].masks
    moved = tree.sub(uploads[0].slots["params"], plan.tasks[0].initial["params"])
    assert not torch.allclose(-0.1 * uploads[0].slots["fedlag.update"]["0.weight"], moved["0.weight"], atol=1e-3)


def test_of_many_steps_the_last_gradient_is_compared():
    plan = tiny_plan("fedlag(signal=last_grad)")
    _, _, uploads = rounds_of(plan, 1, [0])
    params, gradients = plan.tasks[0].initial["params"], []
    for ctx, batch in batches(plan, context_of(plan, 0), 0):
        gradients.append(ctx.grad({"params": params, "buffers": {}}, "params", batch).tree)
        params = tree.add(params, gradients[-1], -0.1)
    first, *_, last = gradients
    for name, leaf in uploads[0].slots["fedlag.update"].items():
        assert torch.allclose(leaf, last[name], atol=1e-6)
        assert not torch.allclose(leaf, first[name], atol=1e-3)


@dataclass(frozen=True)
class Shifted(Method):
    """FedAvg whose clients add 1 to the model before they train it."""

    name = "shifted"

    def phases(self, ctx):
        return (Phase(self.look, "look", slots=()), Phase(self.step, before=self.shift))

    def look(self, ctx, work, batch):
        return work

    def shift(self, ctx, work):
        return {**work, "params": tree.map(lambda leaf: leaf + 1.0, work["params"])}


def test_a_start_that_the_inner_method_moves_is_the_start_of_the_update():
    plan = tiny_plan(FedLAG(Shifted()))
    _, _, uploads = rounds_of(plan, 1, [0])
    assert all(masked(uploads[0]).values())
    for name, leaf in uploads[0].slots["fedlag.update"].items():
        start = plan.tasks[0].initial["params"][name] + 1.0
        assert torch.equal(leaf, uploads[0].slots["params"][name] - start)


@dataclass(frozen=True)
class Twice(Method):
    """FedAvg in two phases that look the same."""

    name = "twice"

    def phases(self, ctx):
        return (Phase(self.step), Phase(self.step))


def test_training_in_several_phases_has_one_start():
    plan = tiny_plan(FedLAG(Twice()))
    _, _, uploads = rounds_of(plan, 1, [0])
    moved = tree.sub(uploads[0].slots["params"], plan.tasks[0].initial["params"])
    assert equal(uploads[0].slots["fedlag.update"], moved)


@dataclass(frozen=True)
class Rounded(Method):
    """FedAvg that sends rounded values."""

    name = "rounded"

    def finish(self, ctx, work):
        return {**work, "params": tree.map(torch.round, work["params"])}


def test_the_update_is_sent_where_the_upload_is_not_the_trained_model():
    plan = tiny_plan(FedLAG(Rounded()))
    _, states, uploads = rounds_of(plan, 1, [0])
    assert all(masked(uploads[0]).values())
    trained, start = states[0]["fedlag.own"], plan.tasks[0].initial["params"]
    assert all(torch.equal(leaf, trained[n] - start[n]) for n, leaf in uploads[0].slots["fedlag.update"].items())


needs_flayer = pytest.mark.skipif("flayer" not in methods, reason="there is no FLAYER")


@needs_flayer
def test_updates_are_scored_before_the_mask_of_an_inner_method():
    """FLAYER's masks change what is averaged, not how clients train: the first scores are those without masks."""
    found = []
    for masking in ("true", "false"):
        plan = tiny_plan(f"fedlag(flayer(masking={masking}), warmup=0)")
        server, _, uploads = rounds_of(plan, 1)
        found.append((conflicts(plan, server), masked(uploads[0])))
    assert found[0][0] == found[1][0]
    assert found[0][1] == {name: name[0] != "4" for name in found[0][1]}  # the head is never masked
    assert not any(found[1][1].values())


@needs_flayer
def test_the_update_of_a_mixed_head_is_sent():
    plan = tiny_plan("fedlag(flayer(masking=false), warmup=2)")
    server, states, _ = rounds_of(plan, 1)
    _, _, uploads = do_round(plan, 1, server, states)
    assert masked(uploads[0]) == {name: name[0] == "4" for name in masked(uploads[0])}


@needs_flayer
def test_under_a_wrapper_that_acts_on_the_model_all_updates_are_sent():
    for method, sent in (("flayer(fedlag(warmup=0))", True), ("finetune(fedlag(warmup=0))", False)):
        _, _, uploads = rounds_of(tiny_plan(method), 1)
        assert set(masked(uploads[0]).values()) == {sent}


@needs_flayer
def test_it_wraps_a_wrapper_around_a_method():
    plan = tiny_plan("fedlag(flayer(ditto), warmup=0)")
    played = play(plan)
    assert len(personal(plan, played.server)) == 1
    assert {"fedlag.own", "flayer.accuracy", "ditto.own"} <= played.clients[0].keys()


# -- the choice ---------------------------------------------------------------------------------------------------

APART = [upload(E[0], E[0]), upload(-E[0], E[1]), upload(E[1], E[2])]  # A: one conflict
OTHER = [upload(E[0], E[0]), upload(E[0], -E[0]), upload(E[0], -E[0])]  # B: two conflicts
CALM = [upload(E[0], E[0]), upload(E[1], E[1]), upload(E[2], E[2])]


def chosen(method: str, *rounds) -> list[set[str]]:
    """The personal layers after each round of uploads, the model at 0 throughout."""
    plan, found = vector_plan(method), []
    server = start = first_server(plan.server(0))
    for round, uploads in enumerate(rounds):
        server = {**judged(plan, uploads, round, server), "params": start["params"]}
        found.append(personal(plan, server))
    return found


def test_the_dynamic_schedule_chooses_after_every_round():
    assert chosen("fedlag(k=1, xi=0, warmup=0, schedule=dynamic)", APART, OTHER, CALM) == [{"A"}, {"B"}, set()]


def test_the_cumulative_schedule_counts_all_rounds_so_far_but_only_layers_that_still_have_conflicts():
    """Of five clients three take part, in `all_calm` five. B has 2 conflicts after OTHER, A 1 after each APART; after
    two of these six updates of B were calm. After APART, OTHER, APART each has 2, and A opposes more."""
    rule, all_calm = "fedlag(k=1, xi=0, warmup=0, schedule=cumulative)", [*CALM, *CALM][:5]
    assert chosen(rule, OTHER, APART, APART) == [{"B"}, {"B"}, {"A"}]
    assert chosen(rule, APART, OTHER, APART) == [{"A"}, {"B"}, {"A"}]
    assert chosen(rule, APART, CALM, CALM, APART) == [{"A"}, {"A"}, set(), {"A"}]
    assert chosen(rule, APART, all_calm) == [{"A"}, set()]


def test_the_steady_schedule_counts_a_layers_conflicts_only_while_it_is_shared():
    """A is personal with 2 conflicts to 1, and keeps this score; B's mean rises to (1 + 2 + 2) / 3 and stays below.
    The sum of all rounds would be 4 to 5 by then. Two rounds without conflict (six updates, of four clients) free A;
    the third counts again: its mean is then (2 + 0) / 2, below B's (1 + 2 + 2 + 0 + 0 + 0 + 2) / 7."""
    first = [upload(E[0], E[0]), upload(-E[0], -E[0]), upload(-E[0], E[1])]
    later = [upload(E[0], E[0]), upload(-E[0], -E[0]), upload(E[1], -E[0])]
    rounds, rules = (first, later, later), "k=1, xi=0, warmup=0, schedule="
    assert chosen(f"fedlag({rules}steady)", *rounds) == [{"A"}, {"A"}, {"A"}]
    assert chosen(f"fedlag({rules}cumulative)", *rounds)[-1] == {"B"}
    assert chosen(f"fedlag({rules}steady)", *rounds, CALM, CALM, CALM, OTHER)[3:] == [{"A"}, set(), set(), {"B"}]


def test_a_round_with_one_upload_keeps_the_choice():
    assert chosen("fedlag(k=1, xi=0, warmup=0)", APART, [upload(E[0], E[0])]) == [{"A"}, {"A"}]


def test_changes_of_the_choice_are_counted_and_one_in_the_last_round_warns():
    plan = vector_plan("fedlag(k=1, xi=0, warmup=0, schedule=dynamic)", rounds=3)
    server, counts = first_server(plan.server(0)), []
    for round, uploads in enumerate((APART, OTHER)):
        server = judged(plan, uploads, round, server)
        counts.append(plan.method.server_records(plan.server(round), server)["personal_changes"])
    assert counts == [0.0, 1.0]
    with pytest.warns(UserWarning, match="changed in the last round"):
        judged(plan, APART, 2, {**server, "params": first_server(plan.server(0))["params"]})


def test_the_warm_up_has_no_personal_layers():
    assert chosen("fedlag(k=1, xi=0, warmup=2)", APART, OTHER, APART) == [set(), set(), {"A"}]


def test_by_default_the_warm_up_is_a_tenth_of_the_rounds_1_to_30():
    for rounds, first in ((4, 1), (25, 2), (100, 10), (1000, 30)):
        plan = vector_plan("fedlag(k=1, xi=0)", rounds)
        assert not personal(plan, judged(plan, APART, first - 1))
        assert personal(plan, judged(plan, APART, first)) == {"A"}


def test_the_static_schedule_chooses_once_by_the_sum():
    """After two rounds A has 1 + 1 conflicts and B has 0 + 1 (of the pair of halves): A, whatever comes later."""
    half = [upload(E[0], E[0]), upload(-E[0], -E[0]), upload(E[1], E[1])]
    assert chosen("fedlag(k=1, xi=0, warmup=1, schedule=static)", APART, half, OTHER, OTHER) == [
        set(),
        {"A"},
        {"A"},
        {"A"},
    ]
    assert chosen("fedlag(k=1, xi=0, warmup=1, schedule=static)", APART, OTHER, APART, APART)[-1] == {"B"}


def test_a_moving_average_remembers_old_conflicts():
    """With ema = 0.75, B has 2 / 4 = 0.5 after OTHER, then 0.375; A has 1 / 4 = 0.25 after APART, then more."""
    letter = "fedlag(k=1, xi=0, warmup=0, schedule=dynamic)"
    assert chosen(f"{letter[:-1]}, ema=0.75)", OTHER, APART, APART) == [{"B"}, {"B"}, {"A"}]
    assert chosen(letter, OTHER, APART, APART) == [{"B"}, {"A"}, {"A"}]


def test_ties_and_layers_without_conflict():
    half = [upload(E[0], E[0]), upload(-E[0], -E[0])]
    assert chosen("fedlag(k=1, xi=0, warmup=0)", half) == [{"B"}]
    assert chosen("fedlag(k=1, xi=0, warmup=0, tie=first)", half) == [{"A"}]
    assert chosen("fedlag(k=1, xi=0, warmup=0, allow_zero=true)", CALM) == [{"B"}]


def test_one_participant_has_nobody_to_conflict_with():
    assert chosen("fedlag(k=1, xi=0, warmup=0)", [upload(E[0], E[0])]) == [set()]


def test_the_default_is_half_of_the_layers_one_to_five():
    method = FedLAG()
    assert [method.count(n) for n in (1, 2, 3, 4, 9, 10, 11, 30)] == [1, 1, 1, 2, 4, 5, 5, 5]


# -- layers -------------------------------------------------------------------------------------------------------


def nested() -> Task:
    block = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 5))
    module = nn.Sequential(nn.BatchNorm1d(4), block, nn.BatchNorm1d(5), nn.Linear(5, 3))
    return Task(module, (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)), classes=3)


@pytest.mark.parametrize(
    ("granularity", "expected"),
    [
        ("module", ["1.0", "1.3", "3"]),
        ("tensor", ["1.0.weight", "1.0.bias", "1.3.weight", "1.3.bias", "3.weight", "3.bias"]),
        ("block", ["1", "3"]),
    ],
)
def test_layers_of_each_granularity_leave_normalisation_out(granularity, expected):
    task = nested()
    units = methods.build(f"fedlag(granularity={granularity})").divide(task, frozenset())
    assert list(units) == expected
    scored = [name for each in units.values() for name in each.params]
    assert set(scored) == set(task.names) - task.norms
    assert [name for each in units.values() for name in each.along] == scored


class Scaled(nn.Linear):
    """A layer, not a normalisation, that has a buffer."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("scale", torch.ones(()))


@pytest.mark.parametrize(("granularity", "layer"), [("module", "1.0"), ("tensor", "1.0.weight"), ("block", "1")])
def test_buffers_of_a_layer_go_with_it(granularity, layer):
    module = nn.Sequential(nn.Linear(4, 5), nn.Sequential(Scaled(5, 5), nn.Linear(5, 3)))
    task = Task(module, (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)), classes=3)
    units = methods.build(f"fedlag(granularity={granularity})").divide(task, frozenset())
    assert [unit for unit, each in units.items() if "1.0.scale" in each.along] == [layer]
    assert not any("1.0.scale" in each.params for each in units.values())


@pytest.mark.parametrize("size", [None, 16])
def test_updates_are_compared_whole_or_as_sketches_of_the_size_asked_for(size):
    """The first layer has 30 coordinates, the last 18."""
    plan = tiny_plan(f"fedlag(sketch={size})" if size else "fedlag")
    server, _, uploads = rounds_of(plan, 1)
    server = first_server(plan.server(0))
    found = {unit: each.cosines for unit, each in plan.method.compare(plan.server(0), server, uploads).items()}
    for unit in ("0", "4"):
        names = [f"{unit}.weight", f"{unit}.bias"]
        rows = [tree.flatten(tree.sub(each.slots["params"], server["params"]), names) for each in uploads.values()]
        wanted = cosine_matrix([row if size is None else sketch(row, size) for row in rows])
        assert torch.allclose(found[unit], wanted, atol=1e-5)
        assert size is None or not torch.allclose(found[unit], cosine_matrix(rows), atol=1e-2)


@pytest.mark.parametrize("granularity", ["module", "tensor", "block"])
def test_normalisation_goes_with_the_layer_before_it_if_asked(granularity):
    task = nested()
    units = methods.build(f"fedlag(granularity={granularity}, attach_norm=preceding)").divide(task, frozenset())
    before = {"0": "1.0", "1.1": "1.0", "2": "1.3"}  # the first has no layer before it
    for norm, layer in before.items():
        key = {"module": layer, "tensor": f"{layer}.weight", "block": "1"}[granularity]
        for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            assert [unit for unit, each in units.items() if f"{norm}.{leaf}" in each.along] == [key]


def test_normalisation_of_a_block_goes_with_its_block_and_that_of_a_private_layer_with_none():
    module = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 5)), nn.BatchNorm1d(5))
    task = Task(module, (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)), classes=5)
    method = methods.build("fedlag(granularity=block, attach_norm=preceding)")
    units = method.divide(task, frozenset())
    assert [unit for unit, each in units.items() if "1.0.running_mean" in each.along] == ["1"]
    kept = method.divide(task, frozenset({"1.1.weight", "1.1.bias"}))
    assert not any("2.running_mean" in each.along for each in kept.values())


def test_attached_normalisation_and_its_statistics_are_the_clients_own():
    plan = tiny_plan("fedlag(k=1, warmup=0, attach_norm=preceding)", norm=True)
    server, states, _ = rounds_of(plan, 2)
    model = model_of(plan, with_personal(plan, server, {"0"}), states, 0)
    own = states[0]["fedlag.own"]
    for name in ("1.weight", "1.bias"):
        assert torch.equal(model["params"][name], own[name])
    assert torch.equal(model["buffers"]["1.running_mean"], own["1.running_mean"])
    assert not torch.equal(own["1.running_mean"], server["buffers"]["1.running_mean"])
    assert torch.equal(model["params"]["3.weight"], server["params"]["3.weight"])


def test_normalisation_is_averaged_unless_attached():
    plan = tiny_plan("fedlag(k=1, warmup=0)", norm=True)
    server, states, _ = rounds_of(plan, 2)
    model = model_of(plan, with_personal(plan, server, {"0"}), states, 0)
    assert torch.equal(model["params"]["1.weight"], server["params"]["1.weight"])
    assert torch.equal(model["buffers"]["1.running_mean"], server["buffers"]["1.running_mean"])
    assert torch.equal(model["params"]["0.weight"], states[0]["fedlag.own"]["0.weight"])


def test_layers_that_the_inner_method_keeps_private_are_not_chosen():
    plan = tiny_plan("fedlag(fedper, warmup=0)")
    server, states, _ = rounds_of(plan, 2)
    assert list(conflicts(plan, server)) == ["0", "2"]
    assert len(personal(plan, server)) == 1
    assert set(states[0]["private"]) == {"4.weight", "4.bias"}
    assert not {"4.weight", "4.bias"} & set(states[0]["fedlag.own"])


# -- errors -------------------------------------------------------------------------------------------------------


def test_bad_options_are_refused_when_the_method_is_built():
    check_bad_options(
        "fedlag",
        *("k=-1", "k=0.5", "xi=0.1", "xi=-1", "warmup=-1", "schedule=once", "signal=gradient", "granularity=row"),
        *("tie=any", "allow_zero=2", "attach_norm=following", "ema=1", "ema=-0.1"),
        *("ema=0.5, schedule=static", "ema=0.5, schedule=steady"),
    )


def test_k_is_compared_with_the_model_before_anything_runs():
    with pytest.raises(OptionError, match=r"k=4 is not allowed; only 3 layers .*\(0, 2, 4\).* \[0, 3\]"):
        tiny_plan("fedlag(k=4)")
    with pytest.raises(OptionError, match="only 2 layers"):
        tiny_plan("fedlag(fedper, k=3)")
    with pytest.raises(ModelError, match="fedper keeps all"):
        tiny_plan("fedlag(fedper(layers=3))")
    with pytest.warns(UserWarning, match="which is local training"):
        tiny_plan("fedlag(k=3)")


def test_a_warm_up_longer_than_the_run_warns():
    plan = tiny_plan("fedlag(warmup=3)", rounds=3)
    with pytest.warns(UserWarning, match="does not end within"):
        first_server(plan.server(0))


def test_what_it_cannot_wrap_says_why():
    with pytest.raises(ComposeError, match="fedlag cannot wrap local: it shares nothing"):
        methods.build("fedlag(local)")
    with pytest.raises(ComposeError, match="fedlag cannot wrap fedlag"):
        methods.build("fedlag(finetune(fedlag))")


def test_the_presets_score_as_the_paper_says_and_as_the_authors_program_does():
    paper, ref = methods.build("fedlag(preset=paper)"), methods.build("fedlag(preset=ref, k=1)")
    assert (paper.xi, paper.schedule, paper.signal, paper.granularity) == (-0.1, "dynamic", "update", "module")
    assert (ref.k, ref.xi, ref.schedule, ref.signal, ref.granularity) == (1, 0.0, "static", "last_grad", "tensor")
    assert (ref.tie, ref.allow_zero) == ("first", True)
