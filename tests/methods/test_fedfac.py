"""FedFac: the analysis through the method, who gets which rows when partitions change, and unseen clients."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import idiolect
from idiolect.analysis import Factors, communalities
from idiolect.contract import ClientContext, Upload, methods
from idiolect.core import tree
from idiolect.core.errors import OptionError
from idiolect.core.tree import Slots
from idiolect.data import Federation
from idiolect.engines import Plan
from idiolect.engines.client_evaluation import adapt_model, predict
from idiolect.engines.client_round import train
from idiolect.engines.slots import aggregate, first_client, first_server, gather, keep_and_send
from idiolect.methods.fedfac.method import FedFac
from idiolect.task.task import Task
from idiolect.testing import check_method, play, play_params, tiny_plan

GOLDEN = {
    "paf": [0.81, 0.64, 0.49, 0.04],
    "pc": [0.8079, 0.7531, 0.6753, 0.0972],
    "eigvec": [0.3462, 0.3227, 0.2894, 0.0416],
}
"""Communalities of one factor with loadings .9, .8, .7, .2, where the variance asks for one factor."""


def plan_of(method: Any, units: int = 2, inputs: int = 1, clients: int = 3, **changes: Any) -> Plan:
    """Clients of four samples each; a hidden layer (`0`) without bias, and an output layer (`1`)."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(inputs, units, bias=False), nn.Linear(units, 2, bias=False))
    x, y = torch.randn(4, inputs), torch.tensor([0, 1, 0, 1])
    parts = {"train": (x, y), "val": (x, y), "test": (x, y)}
    task = Task(module, (x, y), classes=2)
    built = methods.build(method)
    built.check(task)
    data = Federation.from_clients([parts] * clients, classes=2)
    return Plan(method=built, tasks=(task,), data=data, **({"rounds": 5} | changes))


def personal_model(ctx: ClientContext, client: Slots, download: Slots) -> Slots:
    """What a client predicts with."""
    return ctx.method.personal_model(ctx, gather(ctx, client, download, training=False))


class Rounds:
    """Rounds whose local training is given: what each participant trains the hidden layer to."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.method, self.round = plan, plan.method, 0
        self.server = first_server(plan.server(0))
        self.states: dict[int, Slots] = {}

    def play(self, trained: dict[int, Any], shared: list[bool] | None = None) -> dict[int, Upload]:
        """One round; `shared` then sets the partition instead of the analysis."""
        uploads = {}
        download = self.method.download(self.plan.server(self.round), self.server, tuple(trained))
        for index, weight in trained.items():
            ctx = self.plan.context(index, self.round, newcomer=index not in self.states)
            client = self.states.get(index) or first_client(ctx)
            work = self.method.prepare(ctx, gather(ctx, client, download.of(index)))
            params = {**work["params"], "0.weight": torch.as_tensor(weight, dtype=torch.float32)}
            work = self.method.finish(ctx, {**work, "params": params})
            self.states[index], uploads[index] = keep_and_send(ctx, client, work)
        with pytest.MonkeyPatch.context() as patch:
            if shared is not None:
                found = Factors(torch.tensor(shared).double(), 1, 7, True)
                patch.setattr(FedFac, "analyse_layer", lambda *_: found)
                patch.setattr("idiolect.methods.fedfac.method.shared_units", lambda *_: torch.tensor(shared))
            self.server = aggregate(self.plan.server(self.round), self.server, uploads)
        self.round += 1
        return uploads

    def rows(self, index: int) -> list[Any]:
        """The hidden layer's rows of a client's model, as numbers where there is one input."""
        ctx = self.plan.context(index, self.round - 1, newcomer=index not in self.states)
        client = self.states.get(index) or first_client(ctx)
        download = self.method.download(self.plan.server(self.round - 1), self.server, (index,)).of(index)
        weight = personal_model(ctx, client, download)["params"]["0.weight"]
        return [row[0] if len(row) == 1 else row for row in weight.tolist()]


def golden_columns(samples: int = 16) -> Tensor:
    """Sixteen samples of four variables whose correlation is exactly that of one factor, loadings .9, .8, .7, .2."""
    loadings = torch.tensor([0.9, 0.8, 0.7, 0.2], dtype=torch.float64)
    correlation = torch.outer(loadings, loadings).fill_diagonal_(1)
    draw = torch.randn(samples, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draw[:, 0] = 1
    scores = torch.linalg.qr(draw).Q[:, 1:]  # orthonormal and orthogonal to the constant
    return scores @ torch.linalg.cholesky(correlation).T


# -- the analysis through the method ---------------------------------------------------------------------


@pytest.mark.parametrize("estimator", GOLDEN)
def test_golden_communalities(estimator: str) -> None:
    """Two clients with eight inputs each; column j of Z is unit j's weights at the first, then at the second client."""
    columns = golden_columns()
    plan = plan_of(FedFac(layers=1, kappa=0.5, estimator=estimator), units=4, inputs=8)
    rounds = Rounds(plan)
    rounds.play({0: columns[:8].T, 1: columns[8:].T})
    assert rounds.server["fedfac.communality"]["0"].tolist() == pytest.approx(GOLDEN[estimator], abs=1e-4)
    assert rounds.server["split.shared"]["0"].tolist() == [True, True, False, False]


def test_one_factor_fewer_as_in_the_authors_code() -> None:
    """kappa = .85 asks for three factors: with `fewer=1` two are taken, with many fewer still one."""
    columns, found = golden_columns(), {}
    for fewer in (0, 1, 9):
        rounds = Rounds(plan_of(FedFac(layers=1, estimator="eigvec", fewer=fewer), units=4, inputs=8))
        rounds.play({0: columns[:8].T, 1: columns[8:].T})
        found[fewer] = rounds.server["fedfac.communality"]["0"].tolist()
    assert sum(found[0]) == pytest.approx(3)
    assert sum(found[1]) == pytest.approx(2)
    assert found[9] == pytest.approx(GOLDEN["eigvec"], abs=1e-4)


def test_the_order_of_clients_does_not_matter() -> None:
    columns, found = golden_columns(24), []
    for order in ((0, 1, 2), (2, 0, 1)):
        rounds = Rounds(plan_of("fedfac(layers=1)", units=4, inputs=8))
        rounds.play({index: columns[8 * part : 8 * part + 8].T for index, part in enumerate(order)})
        found.append(rounds.server["fedfac.communality"]["0"])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=0)


def test_of_identical_clients_only_the_correlation_within_the_layer_counts() -> None:
    weight = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    rounds = Rounds(plan_of("fedfac(layers=1)", units=5, inputs=8))
    rounds.play(dict.fromkeys(range(3), weight))
    torch.testing.assert_close(rounds.server["fedfac.communality"]["0"], communalities(weight.T), atol=1e-5, rtol=0)


def test_a_unit_without_variance_is_personal() -> None:
    """Its weights are all equal: it correlates with nothing, and its communality is 0."""
    columns = golden_columns().clone()
    columns[:, 0] = 0.5
    rounds = Rounds(plan_of("fedfac(layers=1, kappa=0.5)", units=4, inputs=8))
    rounds.play({0: columns[:8].T, 1: columns[8:].T})
    assert rounds.server["fedfac.communality"]["0"][0] == 0
    assert not rounds.server["split.shared"]["0"][0]


def test_equal_communalities_are_all_shared() -> None:
    """kappa = 1 takes all factors: principal components explain everything, and a tie at the threshold is shared."""
    for tau in (0.0, 0.5, 1.0):
        rounds = Rounds(plan_of(FedFac(layers=1, kappa=1.0, estimator="pc", tau=tau), units=4, inputs=8))
        rounds.play({0: golden_columns()[:8].T, 1: golden_columns()[8:].T})
        assert rounds.server["split.shared"]["0"].all()


def test_more_units_than_samples() -> None:
    """Two clients with one input give two samples of six units: the correlation matrix has rank 1."""
    rounds = Rounds(plan_of("fedfac(layers=1)", units=6))
    rounds.play({0: torch.randn(6, 1), 1: torch.randn(6, 1)})
    assert rounds.server["fedfac.communality"]["0"].isfinite().all()


def test_one_participant_is_analysed_with_a_warning() -> None:
    rounds = Rounds(plan_of("fedfac(layers=1)", units=4, inputs=8))
    with pytest.warns(UserWarning, match="one client only; raise the participation"):
        rounds.play({0: golden_columns()[:8].T})
    assert rounds.server["fedfac.communality"]["0"].any()


def test_updates_may_be_analysed_instead_of_weights() -> None:
    """The server knows no personal row's start, so clients send what is analysed."""
    rounds, columns = (
        Rounds(plan_of("fedfac(layers=1, analyse=updates, kappa=0.5)", units=4, inputs=8)),
        golden_columns(),
    )
    start = rounds.plan.tasks[0].initial["params"]["0.weight"]
    uploads = rounds.play({0: start + columns[:8].T, 1: start + columns[8:].T})
    torch.testing.assert_close(uploads[1].slots["fedfac.update"]["0.weight"], columns[8:].T.float())
    assert rounds.server["fedfac.communality"]["0"].tolist() == pytest.approx(GOLDEN["paf"], abs=1e-4)


def test_what_a_wrapper_holds_back_counts_as_unchanged() -> None:
    """A mask without row 1 leaves the server's own row 1 in the analysis; a client that sent nothing is left out."""
    plan = plan_of("fedfac(layers=1)", units=2, inputs=3)
    weight, before = torch.tensor([[1.0, 2, 3], [7, 8, 9]]), first_server(plan.server(0))
    mask = torch.tensor([[True] * 3, [False] * 3])
    uploads = {0: Upload({"params": {"0.weight": weight}}, {"params": {"0.weight": mask}}), 1: Upload({"params": {}})}
    with pytest.warns(UserWarning, match="one client"):
        (found,) = plan.method.collect(plan.method.split(plan.tasks[0])[0], before, uploads)
    assert found[0].tolist() == [1, 2, 3]
    assert found[1].equal(before["params"]["0.weight"][1])


# -- who gets which rows -----------------------------------------------------------------------------------


def test_hand_worked_example_of_the_docstring() -> None:
    """Rows (1, 3), (2, 2) and (3, 5), (4, 0), equal sizes: means (2, 4) and (3, 1). The first unit is shared, so both
    continue with (2, 4) there and with their own second row; the third client has none and takes (3, 1)."""
    rounds = Rounds(plan_of("fedfac(layers=1)", inputs=2))
    rounds.play({0: [[1, 3], [2, 2]], 1: [[3, 5], [4, 0]]}, shared=[True, False])
    assert rounds.server["params"]["0.weight"].tolist() == [[2, 4], [3, 1]]
    assert [rounds.rows(index) for index in range(3)] == [[[2, 4], [2, 2]], [[2, 4], [4, 0]], [[2, 4], [3, 1]]]


def test_before_the_first_analysis_all_units_are_shared() -> None:
    rounds = Rounds(plan_of("fedfac(layers=1)"))
    assert rounds.server["split.shared"]["0"].all()


def test_changing_partitions_and_absent_clients() -> None:
    """Client 0 trains in round 0 only, 1 and 2 go on; one input, two units.

    Round 0: all train to (1, 1), (2, 2), (3, 3); the second unit becomes personal. Means 2, 2.
    Round 1: 1 and 2 train to (10, 20), (30, 40); now the second unit is shared: 30, the mean of those two only.
    Round 2: 1 and 2 train to (10, 50), (30, 70); the second unit is personal again, and client 0 continues with the 1
    that it trained in round 0, although it was shared in between."""
    rounds = Rounds(plan_of("fedfac(layers=1)"))
    rounds.play({0: [[1], [1]], 1: [[2], [2]], 2: [[3], [3]]}, shared=[True, False])
    assert [rounds.rows(index) for index in range(3)] == [[2, 1], [2, 2], [2, 3]]
    rounds.play({1: [[10], [20]], 2: [[30], [40]]}, shared=[True, True])
    assert [rounds.rows(index) for index in range(3)] == [[20, 30]] * 3
    rounds.play({1: [[10], [50]], 2: [[30], [70]]}, shared=[True, False])
    assert [rounds.rows(index) for index in range(3)] == [[20, 1], [20, 50], [20, 70]]


def test_a_released_row_may_continue_from_the_servers() -> None:
    """As above, but only client 2 trains in round 2, to (30, 70). The others have not trained since the second unit was
    last shared, in round 2, and take the server's newest value, 70. When client 0 trains it to 65, it has its own
    again, and so has client 2; client 1 follows the server."""
    rounds = Rounds(plan_of("fedfac(layers=1, on_release=global)"))
    rounds.play({0: [[1], [1]], 1: [[2], [2]], 2: [[3], [3]]}, shared=[True, False])
    assert [rounds.rows(index) for index in range(3)] == [[2, 1], [2, 2], [2, 3]]
    rounds.play({1: [[10], [20]], 2: [[30], [40]]}, shared=[True, True])
    rounds.play({2: [[30], [70]]}, shared=[True, False])
    assert [rounds.rows(index)[1] for index in range(3)] == [70, 70, 70]
    rounds.play({0: [[20], [65]]}, shared=[True, False])
    assert [rounds.rows(index)[1] for index in range(3)] == [65, 65, 70]


def test_shared_rows_are_weighted_by_samples() -> None:
    played = play(tiny_plan("fedfac(layers=1)", rounds=1))
    own = [each["split.own"]["0.weight"] for each in played.clients.values() if each]
    mean = tree.mean([{"w": leaf} for leaf in own], [14, 9, 6, 3, 1])["w"]
    assert played.server["params"]["0.weight"].equal(mean)


def test_after_a_round_all_clients_agree_on_shared_rows_and_only_there() -> None:
    plan = tiny_plan("fedfac(layers=[1, 2])")
    shared, found = play(plan).server["split.shared"], play_params(plan)
    for layer, rows in shared.items():
        assert 0 < rows.sum() < len(rows)
        for name in (f"{layer}.weight", f"{layer}.bias"):
            leaves = torch.stack([model[name].reshape(len(rows), -1) for model in found.values()])
            same = leaves.eq(leaves[0]).flatten(2).all(2).all(0)
            assert same[rows].all(), name
            assert not same[~rows].all(), name
    assert all(model["4.weight"].equal(found[0]["4.weight"]) for model in found.values())


def test_normalisation_follows_its_unit() -> None:
    plan = tiny_plan("fedfac(layers=1)", norm=True)
    played = play(plan)
    rows = played.server["split.shared"]["0"]
    download = plan.method.download(plan.server(2), played.server, (0, 1))
    a, b = (personal_model(plan.context(i, 2, newcomer=False), played.clients[i] or {}, download.of(i)) for i in (0, 1))
    for slot, name in (("params", "1.weight"), ("params", "1.bias"), ("buffers", "1.running_mean")):
        assert a[slot][name].eq(b[slot][name]).equal(rows), name


def test_all_local_bias_stays_own_even_if_its_unit_is_released() -> None:
    """With `on_release=global` a released row comes from the server; a bias that is never shared does not."""
    plan = tiny_plan("fedfac(layers=1, bias=all_local, on_release=global)")
    method, ctx = plan.method, plan.context(0, 4, newcomer=False)
    server = first_server(plan.server(0)) | {
        "split.shared": {"0": torch.zeros(6, dtype=torch.bool)},
        "fedfac.until": {"0": torch.full((6,), 3)},
    }
    client = first_client(ctx)
    client["split.own"] = tree.map(lambda leaf: leaf + 1, client["split.own"])
    client["fedfac.trained"] = {"round": torch.tensor(2)}
    model = personal_model(ctx, client, method.download(plan.server(4), server, (0,)).of(0))
    assert model["params"]["0.weight"].equal(server["params"]["0.weight"])
    assert model["params"]["0.bias"].equal(server["params"]["0.bias"] + 1)


# -- schedules ---------------------------------------------------------------------------------------------


def test_static_analyses_once_and_discards_the_set_up_models() -> None:
    """All clients train for `pre_epochs`; only their split layers go up; nothing but the partition stays."""
    plan = tiny_plan("fedfac(layers=1, schedule=static, pre_epochs=5)", participation=0.4)
    method, ctx = plan.method, plan.server(-1)
    assert method.needs.setup_rounds == 1
    assert list(plan.participants(-1)) == list(plan.data.seen)
    before = first_server(ctx)
    uploads = {}
    for index in plan.data.seen:
        outcome = train(plan, index, -1, None, method.download(ctx, before, plan.data.seen).of(index))
        assert outcome.upload is not None
        assert outcome.upload.slots.keys() == {"params", "weight"}
        assert outcome.upload.slots["params"].keys() == {"0.weight"}
        assert outcome.steps == 5 * math.ceil((14, 9, 6, 3, 1)[index] / 4)
        fresh = first_client(plan.context(index, -1))
        assert all(leaf.equal(fresh[slot][n]) for slot, each in outcome.state.items() for n, leaf in each.items())
        uploads[index] = outcome.upload
    after = aggregate(ctx, before, uploads)
    assert all(leaf is before["params"][name] for name, leaf in after["params"].items())
    assert after["split.shared"]["0"].sum() == 3
    played = play(plan)
    assert played.server["split.shared"]["0"].equal(after["split.shared"]["0"])
    assert played.server["fedfac.communality"]["0"].equal(after["fedfac.communality"]["0"])


def test_whoever_only_set_up_takes_the_participants_rows() -> None:
    plan = tiny_plan("fedfac(layers=1, schedule=static)", participation=0.4, rounds=1)
    played = play(plan)
    for index, state in played.clients.items():
        assert state is not None
        download = plan.method.download(plan.server(0), played.server, (index,)).of(index)
        model = personal_model(plan.context(index, 0, newcomer=False), state, download)
        participant = int(state["fedfac.trained"]["round"]) == 0
        assert model["params"]["0.weight"].equal(played.server["params"]["0.weight"]) != participant


def test_dynamic_analyses_every_so_many_rounds() -> None:
    method = methods.build("fedfac(refresh_every=3)")
    assert [round for round in range(8) if method.analyses(round)] == [0, 3, 6]
    assert method.needs.setup_rounds == 0


def test_random_communalities_are_redrawn_and_reproducible() -> None:
    rounds = Rounds(plan_of("fedfac(layers=1, estimator=random)", units=6))
    found = []
    for _ in range(2):
        rounds.play({0: torch.randn(6, 1), 1: torch.randn(6, 1)})
        found.append(rounds.server["fedfac.communality"]["0"])
    assert not found[0].eq(found[1]).any()
    again = Rounds(plan_of("fedfac(layers=1, estimator=random)", units=6))
    again.play({0: torch.randn(6, 1), 1: torch.randn(6, 1)})
    assert again.server["fedfac.communality"]["0"].equal(found[0])


def test_what_the_server_decided_is_recorded() -> None:
    """Shared units, those that did not change sides, and the communalities, per layer and round."""
    rounds = Rounds(plan_of("fedfac(layers=1)"))
    rounds.play({0: [[1], [1]], 1: [[2], [2]]}, shared=[True, False])
    records = rounds.method.server_records(rounds.plan.server(0), rounds.server)
    assert records == {
        "shared_units/0": 1,
        "stable_units/0": 0.5,
        "communality_min/0": 0,
        "communality_mean/0": 0.5,
        "communality_max/0": 1,
        "factor_steps/0": 7,
        "factor_converged/0": 1,
    }
    names = {row[5] for row in play(tiny_plan("fedfac(layers=[1, 2])")).rows if row[2] == "server"}
    assert {"stable_units/0", "stable_units/2", "shared_units/2"} <= names


# -- identities, presets, options --------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"participation": 0.4}, {"norm": True}, {"unseen": 2}])
def test_all_shared_is_fedavg_to_the_bit_whatever_the_run(changes: dict[str, Any]) -> None:
    for text in ("fedfac(tau=-inf)", "fedfac(tau=-inf, layers=[1, 2], schedule=static, on_release=global)"):
        ours, plain = (
            [row for row in play(tiny_plan(each, **changes)).rows if row[2] != "server"] for each in (text, "fedavg")
        )
        assert ours == plain


def test_infinite_thresholds_need_no_analysis() -> None:
    for tau in ("inf", "-inf"):
        method = methods.build(f"fedfac(tau={tau}, schedule=static)")
        assert method.needs.setup_rounds == 0
        assert not first_server(tiny_plan(f"fedfac(tau={tau})").server(0))["fedfac.communality"]["2"].any()


def test_each_split_layer_may_have_its_own_threshold_and_share_of_variance() -> None:
    """Thresholds inf and 0.5: of the first layer nothing is shared and nothing analysed, of the second about half."""
    played = play(tiny_plan("fedfac(layers=[1, 2], tau=[inf, 0.5], kappa=[0.5, 0.9], estimator=pc)"))
    assert not played.server["split.shared"]["0"].any()
    assert not played.server["fedfac.communality"]["0"].any()
    assert 0 < int(played.server["split.shared"]["2"].sum()) < 5
    with pytest.raises(OptionError, match="tau holds 3 numbers, but 2 layers are split"):
        tiny_plan("fedfac(layers=[1, 2], tau=[0.1, 0.2, 0.3])")
    with pytest.raises(OptionError, match="is not allowed"):
        methods.build("fedfac(tau=[0.5, 1.5])")


def test_the_dynamic_schedule_may_analyse_before_round_1() -> None:
    """As in Algorithm 2: the partition of the first round comes from models that all clients trained for it."""
    assert methods.build("fedfac(at_start=true)").needs.setup_rounds == 1
    assert methods.build("fedfac").needs.setup_rounds == 0
    once, never = (
        play(tiny_plan(f"fedfac(at_start={each}, estimator=pc)", rounds=1)).rows for each in ("true", "false")
    )
    changed = [[row[6] for row in rows if row[5] == "stable_units/2"][-1] for rows in (once, never)]
    assert changed[1] < 1  # all were shared before; with an analysis before round 1 they no longer are
    assert changed[0] != changed[1]


def test_an_iteration_that_does_not_converge_warns_and_is_recorded() -> None:
    plan = tiny_plan("fedfac(iterations=1)", rounds=1)
    with pytest.warns(UserWarning, match="did not converge in 1 steps"):
        rows = play(plan).rows
    found = {row[5]: row[6] for row in rows if row[2] == "server"}
    assert (found["factor_steps/2"], found["factor_converged/2"]) == (1.0, 0.0)


def test_the_servers_learning_rate_moves_shared_rows_and_leaves_personal_ones_their_mean() -> None:
    """Two units at 0, both clients send 2 and 4 for them: with rate 0.5 a shared unit moves to 1.5, half of the mean 3;
    a personal one has no common value, and newcomers take its mean."""
    rounds = Rounds(plan_of("fedfac(layers=1, server_lr=0.5)"))
    zero = torch.zeros_like(rounds.server["params"]["0.weight"])
    rounds.server["params"] = {**rounds.server["params"], "0.weight": zero}
    rounds.server["split.shared"] = {"0": torch.tensor([True, False])}
    rounds.play({0: [[2], [2]], 1: [[4], [4]]}, shared=[True, False])
    assert rounds.server["params"]["0.weight"].flatten().tolist() == [1.5, 3.0]


@pytest.mark.parametrize(("group", "kept"), [("shared", 1), ("personal", 0)])
def test_one_group_of_units_may_be_replaced_by_noise_in_predictions_only(group: str, kept: int) -> None:
    models = {}
    for replaced in ("none", group):
        rounds = Rounds(plan_of(f"fedfac(layers=1, replace_units={replaced})"))
        rounds.play({0: [[2], [2]], 1: [[4], [4]]}, shared=[True, False])
        models[replaced] = rounds.rows(0)
    assert models[group][kept] == models["none"][kept]
    assert models[group][1 - kept] != models["none"][1 - kept]


@pytest.mark.parametrize(("group", "kept"), [("shared", 1), ("personal", 0)])
def test_one_group_of_units_may_be_replaced_by_noise_whenever_training_begins(group: str, kept: int) -> None:
    """What a client predicts with is what it trained; where it starts the next round has noise in one group."""
    rounds = Rounds(plan_of(f"fedfac(layers=1, replace_units={group}, replace_when=train)"))
    rounds.play({0: [[2], [2]], 1: [[4], [4]]}, shared=[True, False])
    assert rounds.rows(0) == [3, 2]
    ctx = rounds.plan.context(0, 1, newcomer=False)
    download = rounds.method.download(rounds.plan.server(1), rounds.server, (0,)).of(0)
    start = rounds.method.prepare(ctx, gather(ctx, rounds.states[0], download))["params"]["0.weight"].flatten().tolist()
    assert start[kept] == rounds.rows(0)[kept]
    assert start[1 - kept] != rounds.rows(0)[1 - kept]


def test_presets() -> None:
    assert methods.build("fedfac(preset=paper)") == FedFac(at_start=True)
    assert methods.build("fedfac(preset=ref)") == FedFac(estimator="eigvec", fewer=1, bias="all_local")
    assert methods.build("fedfac(preset=ref)").needs.norm_stats == "local"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kappa": 0.0}, r"must lie in \(0, 1\]"),
        ({"kappa": 1.01}, r"must lie in \(0, 1\]"),
        ({"tau": 1.5}, r"a quantile in \[0, 1\], inf \(all units personal\) or -inf \(all shared\)"),
        ({"tau": -0.1}, "a quantile"),
        ({"tau": math.nan}, "tau=nan is not allowed"),
        ({"tau": "half"}, "must be a number"),
        ({"estimator": "ml"}, "one of paf, pc, eigvec, random"),
        ({"schedule": "once"}, "one of dynamic, static"),
        ({"analyse": "gradients"}, "one of weights, updates"),
        ({"on_release": "mean"}, "one of own, global"),
        ({"onboarding": "vote"}, "one of localtrain, ensemble, average"),
        ({"refresh_every": 0}, r"must lie in \[1, inf\)"),
        ({"pre_epochs": 0}, r"must lie in \[1, inf\)"),
        ({"fewer": -1}, r"must lie in \[0, inf\)"),
        ({"iterations": 0}, r"must lie in \[1, inf\)"),
    ],
)
def test_bad_options(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        FedFac(**changes)


# -- unseen clients ----------------------------------------------------------------------------------------


def unseen_model(method: str, **changes: Any) -> tuple[Plan, Any, Slots, Slots]:
    """The plan, the context of an unseen client, the server at the end, and the client's model before any training."""
    plan = tiny_plan(method, unseen=1, **changes)
    server, index = play(plan).server, max(plan.data.unseen)
    ctx = plan.context(index, plan.rounds - 1)
    download = plan.method.download(plan.server(plan.rounds - 1), server, (index,)).of(index)
    return plan, ctx, server, personal_model(ctx, first_client(ctx), download)


def test_average_and_localtrain_start_from_the_participants_mean() -> None:
    for onboarding in ("average", "localtrain"):
        plan, ctx, server, model = unseen_model(f"fedfac(layers=1, onboarding={onboarding})")
        assert all(leaf.equal(server["params"][name]) for name, leaf in model["params"].items())
        tuned = adapt_model(plan, ctx, model, unseen=True)
        if onboarding == "average":
            assert tuned is None
        else:
            assert tuned is not None
            assert not tuned["params"]["0.weight"].equal(model["params"]["0.weight"])


@pytest.mark.parametrize("changes", [{}, {"norm": True}])
def test_the_ensemble_is_the_mean_of_the_participants_outputs(changes: dict[str, Any]) -> None:
    plan, ctx, server, model = unseen_model("fedfac(layers=1, onboarding=ensemble)", **changes)
    assert adapt_model(plan, ctx, model, unseen=True) is None
    x = plan.data.clients[ctx.index].split("test")[0]
    clients = play(plan).clients
    download = plan.method.download(plan.server(2), server, plan.data.seen)
    outputs = []
    for index, state in clients.items():
        member = plan.context(index, 2, newcomer=False)
        if state is not None:
            own = personal_model(member, state, download.of(index))
            assert "fedfac.members" not in own
            outputs.append(predict(plan, member, own, x))
    assert len(outputs) > 2
    torch.testing.assert_close(predict(plan, ctx, model, x), torch.stack(outputs).mean(0))


def test_the_ensemble_is_of_the_last_rounds_participants() -> None:
    plan, _, server, model = unseen_model("fedfac(layers=1, onboarding=ensemble)", participation=0.4)
    assert len(model["fedfac.members"]["0.weight"]) == len(plan.participants(2)) == 2
    assert server["fedfac.members"].keys() == {"0.weight", "0.bias"}


# -- with others -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["fedlag(fedfac(layers=1), warmup=1)", "flayer(fedfac(onboarding=ensemble))", "finetune(fedfac)"]
)
def test_wrappers_go_around_fedfac(text: str) -> None:
    if text.split("(")[0] not in methods:
        pytest.skip("this wrapper is not here")
    check_method(text, ["through_bytes", "messages", "stacking"])


@pytest.mark.parametrize(
    "text",
    [
        "fedfac(schedule=static, analyse=updates, on_release=global)",
        "fedfac(layers=[1, 2], onboarding=ensemble, refresh_every=2)",
    ],
)
def test_conformance_of_other_options(text: str) -> None:
    check_method(text, ["round_trip", "through_bytes", "messages", "pure", "unseen_clients", "resume", "poison"])


def test_a_run_with_convolutions() -> None:
    """Channels are the units of a convolution; figure 4 flattens its kernels."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    result = idiolect.run("fedfac(tau=0.25)", "digits", model=module, clients=4, rounds=2, seed=0)
    server = result.store.server()
    assert server["split.shared"]["0"].sum() == 3
    assert server["fedfac.communality"]["0"].shape == (4,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.summary["accuracy"]["selected"]["weighted"] > 0.2
