"""FedLAG: the layers that clients pull apart become personal, all others come from the server."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from idiolect.contract import Method, Needs, Phase, Task, Training, Upload, methods
from idiolect.core import codec, tree
from idiolect.core.errors import ComposeError, ModelError, OptionError
from idiolect.data import Client
from idiolect.engines import Loop, Plan
from idiolect.engines.client_round import train
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.fedlag import FedLAG
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.testing import play, tiny_federation, tiny_plan, views

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
    alone = views(tiny_plan("local"))
    every = views(tiny_plan("fedlag(k=3, allow_zero=true, warmup=0)"))
    assert all(equal(view, alone[i]) for i, view in every.items())


@pytest.mark.filterwarnings("ignore:fedlag. with k=3")
def test_with_all_layers_and_their_normalisation_personal_it_is_local_training():
    alone = play(tiny_plan("local", norm=True))
    plan = tiny_plan("fedlag(k=3, allow_zero=true, warmup=0, attach_norm=preceding)", norm=True)
    every = play(plan)
    for index in range(4):  # the fifth client has a single sample, which batch normalisation cannot train on
        view = model_of(plan, every.server, every.clients, index)
        assert equal({**view["params"], **view["buffers"]}, alone.clients[index]["private"])


def test_with_the_head_personal_throughout_it_is_fedper():
    fixed, fedper = views(tiny_plan(Fixed(schedule="static"))), views(tiny_plan("fedper"))
    assert all(equal(view, fedper[i]) for i, view in fixed.items())


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
        view = model_of(plan, with_personal(plan, server, chosen), states, 0)
        assert torch.equal(view["params"]["2.weight"], expected)


def test_an_absent_client_keeps_its_own_values_and_takes_the_newest_choice():
    plan = tiny_plan("fedlag(warmup=0)")
    server, states, _ = rounds_of(plan, 1)
    before = states[4]["fedlag.own"]
    after, states, _ = do_round(plan, 1, server, states, ids=[0, 1])
    view = model_of(plan, with_personal(plan, after, {"0"}), states, 4)["params"]
    assert torch.equal(view["0.weight"], before["0.weight"])
    assert torch.equal(view["4.weight"], after["params"]["4.weight"])


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
    view = model_of(plan, with_personal(plan, server, {"4"}), states, 0)
    assert equal(view["params"], server["params"])


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
    assert {"fedlag.own", "flayer.own", "ditto.own"} <= played.clients[0].keys()


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
    assert chosen("fedlag(k=1, xi=0, warmup=0)", APART, OTHER, CALM) == [{"A"}, {"B"}, set()]


def test_the_warm_up_has_no_personal_layers():
    assert chosen("fedlag(k=1, xi=0, warmup=2)", APART, OTHER, APART) == [set(), set(), {"A"}]


def test_by_default_the_warm_up_is_half_of_the_rounds_and_at_most_30():
    for rounds, first in ((1, 0), (4, 2), (5, 2), (100, 30)):
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
    assert chosen("fedlag(k=1, xi=0, warmup=0, ema=0.75)", OTHER, APART, APART) == [{"B"}, {"B"}, {"A"}]
    assert chosen("fedlag(k=1, xi=0, warmup=0)", OTHER, APART, APART) == [{"B"}, {"A"}, {"A"}]


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


@pytest.mark.parametrize("granularity", ["module", "tensor", "block"])
def test_normalisation_goes_with_the_layer_before_it_if_asked(granularity):
    task = nested()
    units = methods.build(f"fedlag(granularity={granularity}, attach_norm=preceding)").divide(task, frozenset())
    before = {"1.1": "1.0", "2": "1.3"}
    for norm, layer in before.items():
        key = {"module": layer, "tensor": f"{layer}.weight", "block": "1"}[granularity]
        for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            assert [unit for unit, each in units.items() if f"{norm}.{leaf}" in each.along] == [key]
    assert not any(name.startswith("0.") for each in units.values() for name in each.along)


def test_attached_normalisation_and_its_statistics_are_the_clients_own():
    plan = tiny_plan("fedlag(k=1, warmup=0, attach_norm=preceding)", norm=True)
    server, states, _ = rounds_of(plan, 2)
    view = model_of(plan, with_personal(plan, server, {"0"}), states, 0)
    own = states[0]["fedlag.own"]
    for name in ("1.weight", "1.bias"):
        assert torch.equal(view["params"][name], own[name])
    assert torch.equal(view["buffers"]["1.running_mean"], own["1.running_mean"])
    assert not torch.equal(own["1.running_mean"], server["buffers"]["1.running_mean"])
    assert torch.equal(view["params"]["3.weight"], server["params"]["3.weight"])


def test_normalisation_is_averaged_unless_attached():
    plan = tiny_plan("fedlag(k=1, warmup=0)", norm=True)
    server, states, _ = rounds_of(plan, 2)
    view = model_of(plan, with_personal(plan, server, {"0"}), states, 0)
    assert torch.equal(view["params"]["1.weight"], server["params"]["1.weight"])
    assert torch.equal(view["buffers"]["1.running_mean"], server["buffers"]["1.running_mean"])
    assert torch.equal(view["params"]["0.weight"], states[0]["fedlag.own"]["0.weight"])


def test_layers_that_the_inner_method_keeps_private_are_not_chosen():
    plan = tiny_plan("fedlag(fedper, warmup=0)")
    server, states, _ = rounds_of(plan, 2)
    assert list(conflicts(plan, server)) == ["0", "2"]
    assert len(personal(plan, server)) == 1
    assert set(states[0]["private"]) == {"4.weight", "4.bias"}
    assert not {"4.weight", "4.bias"} & set(states[0]["fedlag.own"])


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        *("k=-1", "k=0.5", "xi=0.1", "xi=-1", "warmup=-1", "schedule=once", "signal=gradient", "granularity=row"),
        *("tie=any", "allow_zero=2", "attach_norm=following", "ema=1", "ema=-0.1", "ema=0.5, schedule=static"),
    ],
)
def test_bad_options_are_refused_when_the_method_is_built(options):
    with pytest.raises(OptionError, match=f"fedlag: {options.partition('=')[0]}="):
        methods.build(f"fedlag({options})")


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
