"""FedSplit: which layers are split and how, what is averaged, what stays, and what unseen clients do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import idiolect
from idiolect.contract import Upload, methods
from idiolect.core import tree
from idiolect.core.errors import InputError, OptionError
from idiolect.core.tree import Slots
from idiolect.data import Federation
from idiolect.engines import Plan
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.phases import batches, fresh_optimizer
from idiolect.engines.slots import aggregate, first_client, first_server, gather, keep_and_send
from idiolect.methods.fedsplit import FedSplit
from idiolect.task.optimizers import SGD
from idiolect.task.task import Task
from idiolect.testing import check_method, play, play_params, tiny_model, tiny_plan


def net() -> nn.Module:
    """One input, a hidden layer of two units, one output unit per class; no biases."""
    return nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False))


def two_clients(method: Any, module: nn.Module) -> Plan:
    """Two clients of four samples with one input each."""
    x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([0, 1, 0, 1])
    parts = {"train": (x, y), "val": (x, y), "test": (x, y)}
    task = Task(module, (x, y), classes=2)
    built = methods.build(method)
    built.check(task)
    data = Federation.from_clients([parts, parts], classes=2)
    return Plan(method=built, tasks=(task,), data=data, rounds=3)


def play_round(plan: Plan, round: int, server: Slots, trained: dict[int, Any], states: dict[int, Slots]) -> Slots:
    """A round whose training is given: client -> what it trained the first layer's weight to."""
    method = plan.method
    download = method.download(plan.server(round), server, tuple(trained))
    uploads: dict[int, Upload] = {}
    for index, weight in trained.items():
        ctx = plan.context(index, round, newcomer=index not in states)
        client = states.get(index) or first_client(ctx)
        work = method.prepare(ctx, gather(ctx, client, download.of(index)))
        work = {**work, "params": {**work["params"], "0.weight": torch.tensor(weight)}}
        states[index], uploads[index] = keep_and_send(ctx, client, method.finish(ctx, work))
    return aggregate(plan.server(round), server, uploads)


def model_of(plan: Plan, round: int, server: Slots, states: dict[int, Slots], index: int) -> Slots:
    """A client's personal model after a round."""
    method, ctx = plan.method, plan.context(index, round, newcomer=index not in states)
    download = method.download(plan.server(round), server, (index,)).of(index)
    client = states.get(index) or first_client(ctx)
    return method.personal_model(ctx, gather(ctx, client, download, training=False))


SHARED = [True, False, False, False, True, False]


# -- the split -------------------------------------------------------------------------------------------


def test_the_hand_worked_example() -> None:
    """Two clients of equal size train units (0, 0) to (2, 4) and (6, 8); unit 0 is shared. Its mean is (2 + 6) / 2 = 4;
    unit 1 was sent by nobody, so the server keeps 0 and the clients continue with their own 4 and 8."""
    module = net()
    nn.init.zeros_(module[0].weight)
    plan, states = two_clients("fedsplit(shared=[0])", module), {}
    server = first_server(plan.server(0))
    server = play_round(plan, 0, server, {0: [[2.0], [4.0]], 1: [[6.0], [8.0]]}, states)
    assert server["params"]["0.weight"].tolist() == [[4.0], [0.0]]
    assert model_of(plan, 0, server, states, 0)["params"]["0.weight"].tolist() == [[4.0], [4.0]]
    assert model_of(plan, 0, server, states, 1)["params"]["0.weight"].tolist() == [[4.0], [8.0]]


def test_personal_rows_never_leave_their_client() -> None:
    plan = tiny_plan("fedsplit(layers=1, shared=[0, 4])")
    ctx, method = plan.context(0, 0), plan.method
    server, client = first_server(plan.server(0)), first_client(ctx)
    work = method.prepare(ctx, gather(ctx, client, method.download(plan.server(0), server, (0,)).of(0)))
    _, upload = keep_and_send(ctx, client, method.finish(ctx, work))
    assert upload.masks["params"].keys() == {"0.weight", "0.bias"}
    assert upload.masks["params"]["0.bias"].tolist() == SHARED
    assert upload.masks["params"]["0.weight"].all(1).equal(upload.masks["params"]["0.weight"].any(1))
    assert upload.masks["params"]["0.weight"].all(1).tolist() == SHARED


def test_clients_agree_on_shared_rows_and_differ_in_personal_ones() -> None:
    found = play_params(tiny_plan("fedsplit(layers=1, shared=[0, 4])"))
    for name in ("0.weight", "0.bias"):
        assert all(model[name][[0, 4]].equal(found[0][name][[0, 4]]) for model in found.values())
        assert not found[1][name][[1, 2, 3, 5]].eq(found[0][name][[1, 2, 3, 5]]).any()
    assert all(model["4.weight"].equal(found[0]["4.weight"]) for model in found.values())


def test_sharing_all_is_fedavg_for_unseen_clients_too() -> None:
    rows = [row for row in play(tiny_plan("fedsplit(share=1)", unseen=2)).rows if row[2] == "unseen"]
    assert rows
    assert rows == [row for row in play(tiny_plan("fedavg", unseen=2)).rows if row[2] == "unseen"]


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("last hidden", ["2"]),
        ("head", ["4"]),
        (1, ["0"]),
        (3, ["4"]),
        (-1, ["4"]),
        (-3, ["0"]),
        ("2", ["2"]),
        ((1, "last hidden"), ["0", "2"]),
    ],
)
def test_layers_by_name_number_or_place(layers: Any, names: list[str]) -> None:
    """Numbers count dense and other layers, not normalisation."""
    for norm in (False, True):
        task = tiny_plan("fedavg", norm=norm).tasks[0]
        wanted = [str(int(name) + (norm and name != "0")) for name in names]
        if layers != "2" or not norm:
            assert [layer.name for layer in FedSplit(layers=layers).split(task)] == wanted


def test_the_last_hidden_layer_is_the_one_before_the_named_head() -> None:
    x, y = torch.zeros(2, 4), torch.tensor([0, 1])
    task = Task(tiny_model(), (x, y), classes=3, head="2")
    assert [layer.name for layer in FedSplit().split(task)] == ["0"]


def test_bias_and_the_normalisation_behind_a_layer_follow_its_units() -> None:
    """What has one entry per unit follows; counters have none, and normalisation of another width not its own."""
    x, y = torch.zeros(2, 1, 8, 8), torch.tensor([0, 1])
    module = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False), nn.GroupNorm(2, 6)),
        *(nn.Flatten(), nn.LayerNorm(96), nn.Linear(96, 5), nn.LayerNorm(5), nn.Linear(5, 2)),
    )
    task = Task(module, (x, y), classes=2)
    found = {
        layer.name: (layer.weight, layer.followers, layer.units) for layer in FedSplit(layers=(1, 2, 3)).split(task)
    }
    norm = ("1.weight", "1.bias", "1.running_mean", "1.running_var")
    assert found["0"] == ("0.weight", ("0.bias", *norm), 4)
    assert found["3"] == ("3.weight", ("4.weight", "4.bias"), 6)
    assert found["7"] == ("7.weight", ("7.bias", "8.weight", "8.bias"), 5)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


@pytest.mark.parametrize(
    ("module", "shape", "layers", "problem"),
    [
        (Recurrent(), (5, 4), "last hidden", r"'lstm' \(LSTM\) cannot be split"),
        (nn.Sequential(nn.Unflatten(1, (4, 1)), nn.ConvTranspose1d(4, 3, 2), nn.Flatten(), nn.Linear(6, 2)), (4,), 1,
         r"'1' \(ConvTranspose1d\) cannot be split.*: 3"),
        (nn.Linear(4, 2), (4,), "last hidden", "no hidden layer to split"),
        (tiny_model(), (4,), "fc1", r"no layer 'fc1' to split; its layers: 1 0, 2 2, 3 4"),
        (tiny_model(), (4,), 4, "no layer 4 to split"),
        (tiny_model(), (4,), 0, "no layer 0 to split"),
        (tiny_model(), (4,), (2, "last hidden"), "each only once"),
        (tiny_model(), (4,), (), "at least one layer"),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_split_is_refused_before_anything_runs(
    module: nn.Module, shape: tuple[int, ...], layers: Any, problem: str
) -> None:
    clients = [(torch.randn(10, *shape), torch.arange(10) % 2)] * 2
    for name in ("fedsplit", "fedfac"):
        with pytest.raises(InputError, match=problem):
            idiolect.run(type(methods.build(name))(layers=layers), clients, model=module, rounds=1)


# -- the partition ---------------------------------------------------------------------------------------


def partition(method: Any, seed: int = 0) -> list[list[bool]]:
    plan = tiny_plan(method, seed=seed)
    return [rows.tolist() for rows in first_server(plan.server(0))["split.shared"].values()]


def test_a_drawn_partition_depends_on_the_seed_alone() -> None:
    assert partition("fedsplit(layers=[1, 2])") == partition("fedsplit(layers=[1, 2])")
    assert len({str(partition("fedsplit(layers=[1, 2])", seed)) for seed in range(5)}) > 1
    assert [sum(rows) for rows in partition("fedsplit(layers=[1, 2], share=0.4)")] == [2, 2]


def test_the_shared_units_come_last_where_they_are_not_drawn() -> None:
    assert partition("fedsplit(layers=1, share=0.5, random=false)") == [[False] * 3 + [True] * 3]
    assert partition("fedsplit(layers=1, share=0.3, random=false)") == [[False] * 4 + [True] * 2]


def test_given_units_one_list_per_layer() -> None:
    assert partition("fedsplit(shared=[0, 3])") == [[True, False, False, True, False]]
    assert partition(FedSplit(layers=(1, 2), shared=((1,), ()))) == [[False, True, *[False] * 4], [False] * 5]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shared": (5,)}, "from 0 to 4"),
        ({"shared": (1, 1)}, "at most once"),
        ({"shared": (0.5,)}, "from 0 to 4"),
        ({"shared": ((0,), (1,))}, "2 lists of units, but 1 layers"),
        ({"shared": (0,), "layers": (1, 2)}, "1 lists of units, but 2 layers"),
        ({"shared": (-1,)}, r"must lie in \[0, inf\)"),
        ({"share": 1.5}, r"must lie in \[0, 1\]"),
        ({"bias": "both"}, "must be one of follow, all_local"),
        ({"layers": 1.5}, "layers must be a text or whole number or list"),
        ({"layers": (1.5,)}, "layers must be a text or whole number or list of texts or whole numbers"),
        ({"layers": (True,)}, "layers must be a text"),
    ],
)
def test_bad_options(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        FedSplit(**changes).check(tiny_plan("fedavg").tasks[0])


def test_the_number_of_shared_units_is_recorded() -> None:
    rows = [row for row in play(tiny_plan("fedsplit(layers=1, shared=[0, 4])")).rows if row[2] == "server"]
    assert {(row[5], row[6]) for row in rows} == {("shared_units/0", 2.0)}


# -- bias, normalisation, unseen clients -------------------------------------------------------------------


def final_models(method: Any, **changes: Any) -> list[Slots]:
    plan = tiny_plan(method, norm=True, **changes)
    played = play(plan)
    return [
        model_of(plan, plan.rounds - 1, played.server, {i: s for i, s in played.clients.items() if s}, index)
        for index in (0, 1)
    ]


def test_normalisation_follows_its_unit() -> None:
    a, b = final_models("fedsplit(layers=1, shared=[0, 4])")
    for slot, name in (("params", "1.weight"), ("params", "1.bias"), ("buffers", "1.running_mean")):
        assert a[slot][name].eq(b[slot][name]).tolist() == SHARED


def test_bias_and_normalisation_may_be_all_personal() -> None:
    """The weight is split as ever; what stands beside it is each client's own, as are all running statistics."""
    method = "fedsplit(layers=1, shared=[0, 4], bias=all_local)"
    a, b = final_models(method)
    assert a["params"]["0.weight"].eq(b["params"]["0.weight"]).all(1).tolist() == SHARED
    for slot, name in (("params", "1.weight"), ("params", "1.bias"), ("buffers", "1.running_var")):
        assert not a[slot][name].eq(b[slot][name]).any()
    plain = play_params(tiny_plan(method))
    assert not plain[0]["0.bias"].eq(plain[1]["0.bias"]).any()
    assert methods.build(method).needs.norm_stats == "local"


def test_what_the_run_keeps_local_is_not_split() -> None:
    a, b = final_models("fedsplit(layers=1, shared=[0, 4])", norm_affine="local", norm_stats="local")
    assert not a["params"]["1.weight"].eq(b["params"]["1.weight"]).any()
    assert not a["buffers"]["1.running_mean"].eq(b["buffers"]["1.running_mean"]).any()


@pytest.mark.parametrize("name", ["fedsplit", "fedfac"])
def test_an_unseen_client_trains_its_personal_rows_and_nothing_else(name: str) -> None:
    """Neither weight decay nor momentum nor running statistics move what is shared."""
    method = type(methods.build(name))(layers=1)
    plan = tiny_plan(method, norm=True, unseen=1, optimizer=SGD(momentum=0.9, weight_decay=0.1, clip=1.0))
    server, index = play(plan).server, max(plan.data.unseen)
    ctx = plan.context(index, plan.rounds - 1)
    before = model_of(plan, plan.rounds - 1, server, {}, index)
    after = adapt_model(plan, ctx, before, unseen=True)
    shared = server["split.shared"]["0"]
    assert 0 < shared.sum() < len(shared)
    assert after is not None
    for slot in ("params", "buffers"):
        for leaf, value in before[slot].items():
            same = value.eq(after[slot][leaf])
            if leaf.split(".")[0] in ("0", "1") and leaf != "1.num_batches_tracked":
                assert same[shared].all(), leaf
                assert not same[~shared].any(), leaf
            elif leaf != "1.num_batches_tracked":
                assert same.all(), leaf


def first_step(**changes: Any) -> tuple[Slots, Slots]:
    """An unseen client's model with units 0 and 4 of the first layer shared, before and after one step on its own."""
    plan = tiny_plan("fedsplit(layers=1, shared=[0, 4])", unseen=1, lr=0.5, **changes)
    index = max(plan.data.unseen)
    ctx = plan.context(index, 0)
    model = model_of(plan, 0, first_server(plan.server(0)), {}, index)
    (phase,) = plan.method.onboard(ctx)
    here, batch = next(batches(plan, replace(ctx, phase=phase), 0))
    return model, phase.step(here, {**fresh_optimizer(here, model), **model}, batch)


def test_what_is_frozen_does_not_count_in_the_clipped_norm() -> None:
    """The gradient of the personal rows alone is clipped to 0.001, so they move by 0.5 * 0.001."""
    before, after = first_step(optimizer=SGD(clip=0.001))
    assert float(tree.norm(tree.sub(after["params"], before["params"]))) == pytest.approx(0.0005, rel=1e-2)


def test_an_unseen_client_trains_all_of_what_the_run_keeps_local() -> None:
    before, after = first_step(norm=True, norm_affine="local")
    assert not before["params"]["1.bias"].eq(after["params"]["1.bias"]).any()
    assert before["params"]["0.weight"].eq(after["params"]["0.weight"]).all(1).tolist() == SHARED


@pytest.mark.parametrize("how", ["predict", "train"])
def test_random_values_in_one_group_are_the_same_on_every_engine(how: str) -> None:
    check_method(f"fedfac(layers=1, estimator=pc, replace_units=personal, replace_when={how})", ["stacking", "pure"])


@pytest.mark.parametrize("text", ["fedsplit(layers=head, shared=[1])", "fedsplit(layers=[1, 2], bias=all_local)"])
def test_conformance_of_other_options(text: str) -> None:
    check_method(text, ["round_trip", "through_bytes", "messages", "pure", "stacking", "batchnorm", "resume"])
