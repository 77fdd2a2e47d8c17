"""pFedGate: gates, budgets, the straight-through rule, masked uploads, the structured split, and prediction."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

import idiolect
from idiolect import Batch, Task
from idiolect.analysis import select_blocks
from idiolect.contract import Upload, methods
from idiolect.core import codec, tree
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines.client_evaluation import adapt_model, evaluate, predict
from idiolect.engines.client_round import train
from idiolect.engines.phases import batches, fresh_optimizer
from idiolect.engines.slots import aggregate, first_server, gather
from idiolect.methods.pfedgate.adaptation import GATE, TALLY
from idiolect.methods.pfedgate.blocks import Blocks
from idiolect.methods.pfedgate.gate import Gate
from idiolect.methods.pfedgate.method import SENT, PFedGate
from idiolect.methods.pfedgate.structured import Rows
from idiolect.models import build
from idiolect.runs.predictor import make_module
from idiolect.task.optimizers import SGD, Adam
from idiolect.testing import check_method, play, tiny_plan
from idiolect.testing.scalar import (
    download_of,
    numeric_gradient,
    personal_model,
    start_training,
    take_batch,
    train_client,
)


def start(plan, index=0):
    """A client at the start of its training: context and working slots, the optimiser's state included."""
    ctx, work = start_training(plan, index=index)
    return ctx, {**fresh_optimizer(ctx, work), **work}


def steps(plan, index=0):
    """Each local step of a client: the slots before and after it, and the coordinates that were active in it."""
    ctx, work = start(plan, index)
    split = plan.method.cut(ctx.task, ctx.variant)
    for here, batch in batches(plan, ctx, 0):
        after = ctx.phase.step(here, {**work, SENT: tree.zeros_like(work[SENT])}, batch)
        yield work, after, split.masks(after[SENT])
        work = {**after, SENT: tree.map(torch.logical_or, work[SENT], after[SENT])}


def counted(masks):
    return sum(int(mask.sum()) for mask in masks.values())


def one_layer(inputs, outputs=1, bias=False):
    """A linear model whose loss is its output, so that the gradient in a weight is its input."""
    x, y = torch.ones(2, inputs), torch.zeros(2, outputs)
    return Task(nn.Linear(inputs, outputs, bias=bias), (x, y), loss=lambda out, _: out.sum(1))


# -- the neutral case ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("split", ["blocks", "structured"])
def test_with_gates_of_one_and_the_whole_model_it_is_fedavg(split, norm):
    momentum = SGD(momentum=0.9, weight_decay=0.01)
    changes = {"norm": norm, "optimizer": momentum, "rounds": 2, "epochs": 1}
    gated = play(tiny_plan(f"pfedgate(s=1, fixed=true, clip=null, split={split})", **changes))
    plain = play(tiny_plan("fedavg", **changes))
    for slot in ("params", "buffers"):
        assert all(torch.equal(leaf, plain.server[slot][n]) for n, leaf in gated.server[slot].items())
    scores = [row for row in gated.rows if row[3] != "state"]
    assert scores == plain.rows


# -- gates and gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize(("kept_only", "score_gradient"), [(False, [3.0, 16.0]), (True, [3.0, 0.0])])
def test_the_hand_worked_example(kept_only, score_gradient):
    """Theta = (2, 4), M = (0.5, 0.8), G = (0.9, 0.2), s = 0.5: the first block stays, theta' = (1, 0).

    The loss is theta' (3, 5), so its gradient in theta' is (3, 5); in theta it is M' (3, 5) = (1.5, 0), in M
    (3 x 2, 0) = (6, 0), in G straight through (3 x 2 x 0.5, 5 x 4 x 0.8) = (3, 16), of which kept blocks have 3.
    """
    task = one_layer(2)
    method = methods.build(f"pfedgate(blocks=2, min_share=0.5, st_kept_only={str(kept_only).lower()})")
    split = method.cut(task, 0.5)
    theta = torch.tensor([[2.0, 4.0]], requires_grad=True)
    gates = {"scale": torch.tensor([0.5, 0.8]).requires_grad_(), "score": torch.tensor([0.9, 0.2]).requires_grad_()}
    scale, active = method.choose(split, gates, 0.5)
    params, _ = split.thin({"weight": theta}, {}, scale, active)
    assert params["weight"].tolist() == [[1.0, 0.0]]
    loss = task.loss(params, {}, Batch(torch.tensor([[3.0, 5.0]]), torch.zeros(1, 1), torch.ones(1))).loss
    loss.backward()
    assert theta.grad.tolist() == [[1.5, 0.0]]
    assert torch.allclose(gates["scale"].grad, torch.tensor([6.0, 0.0]))
    assert torch.allclose(gates["score"].grad, torch.tensor(score_gradient))


def doubled(plan):
    """The same plan in double precision, for finite differences."""
    task = Task(plan.tasks[0].module.double(), (plan.tasks[0].example[0].double(), plan.tasks[0].example[1]), classes=3)
    plan = replace(plan, tasks=(task,))
    gate = plan.nets["gate"]
    gate.module.double()
    gate.params, gate.buffers = (tree.map(torch.Tensor.double, each) for each in (gate.params, gate.buffers))
    return plan


@pytest.mark.parametrize("options", ["s=1", "s=1, shared_path=true", "s=1, gate_bias=1, post_norm=false"])
def test_the_joint_gradient_agrees_with_finite_differences(options):
    plan = doubled(tiny_plan(f"pfedgate({options})", batch_size=8))
    method = plan.method
    ctx, work = start(plan)
    torch.manual_seed(0)
    work = {**work, GATE: tree.map(lambda leaf: leaf + 0.3 * torch.randn_like(leaf), work[GATE])}
    batch = take_batch(plan, 8)
    batch = Batch(batch.x.double(), batch.y, batch.weight.double())
    loss = method.loss(ctx, method.cut(ctx.task, ctx.variant), work, batch, ("params", GATE))
    found = ctx.grad(work, ("params", GATE), batch, loss=loss).slots
    for slot in ("params", GATE):
        wanted = numeric_gradient(lambda leaves, slot=slot: loss({**work, slot: leaves}).loss, work[slot])
        for name, leaf in wanted.items():
            assert torch.allclose(found[slot][name], leaf, rtol=1e-4, atol=1e-8), (slot, name)


def test_with_a_budget_the_model_learns_from_active_blocks_and_scores_from_all():
    """The gradient in G is M times that in M', for dropped blocks too; that in M' by finite differences."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))
    task, batch = Task(module, (x, y), classes=3), Batch(x, y, torch.ones(8, dtype=torch.float64))
    method = methods.build("pfedgate(s=0.4, solver=greedy)")
    split = method.cut(task, 0.4)
    gates = {name: torch.rand(split.count, dtype=torch.float64).requires_grad_() for name in ("scale", "score")}
    params = {name: leaf.clone().requires_grad_() for name, leaf in task.net.params.items()}
    scale, active = method.choose(split, gates, 0.4)
    task.loss(*split.thin(params, {}, scale, active), batch).loss.backward()
    masks = split.masks(split.marks(active))
    assert 0 < int((~active).sum()) < split.count
    for name, leaf in params.items():
        assert leaf.grad[masks[name]].any()
        assert not leaf.grad[~masks[name]].any()
    with torch.no_grad():
        for at in range(split.count):
            shift = 1e-5 * nn.functional.one_hot(torch.tensor(at), split.count)
            up, down = (task.loss(*split.thin(params, {}, scale + way * shift, active), batch).loss for way in (1, -1))
            gradient = float(up - down) / 2e-5
            assert float(gates["scale"].grad[at]) == pytest.approx(gradient * float(active[at]), abs=1e-8)
            assert float(gates["score"].grad[at]) == pytest.approx(gradient * float(gates["scale"][at]), abs=1e-8)
    assert int((gates["score"].grad[~active] != 0).sum()) >= 9


def test_padding_changes_nothing():
    plan = tiny_plan("pfedgate")
    ctx, work = start(plan)
    batch = take_batch(plan)
    padded = Batch(
        torch.cat([batch.x, 9 + torch.randn(3, 4)]),
        torch.cat([batch.y, batch.y[:3]]),
        torch.cat([batch.weight, torch.zeros(3)]),
    )
    plain, other = (ctx.phase.step(ctx, work, each) for each in (batch, padded))
    for slot, leaves in plain.items():
        for name, leaf in leaves.items():
            assert torch.allclose(leaf.float(), other[slot][name].float(), atol=1e-6), (slot, name)


@pytest.mark.parametrize("s", [1, 0.5])
def test_a_step_descends_the_loss_in_model_and_gate(s):
    """The gradient itself is compared with finite differences above."""
    plan = tiny_plan(f"pfedgate(s={s}, clip=null, gate_lr=0.3)", lr=0.1)
    (ctx, work), batch = start(plan), take_batch(plan)
    loss = plan.method.loss(ctx, plan.method.cut(ctx.task, s), work, batch, ("params", GATE))
    grads = ctx.grad(work, ("params", GATE), batch, loss=loss).slots
    after = ctx.phase.step(ctx, work, batch)
    for slot, lr in (("params", 0.1), (GATE, 0.3)):
        for name, leaf in after[slot].items():
            assert torch.allclose(leaf, work[slot][name] - lr * grads[slot][name], atol=1e-7), (slot, name)
    assert float(tree.norm(grads[GATE])) > 1e-3


def test_a_client_starts_each_round_with_the_gate_that_it_trained():
    plan = tiny_plan("pfedgate")
    state = train_client(plan).state
    _, first = start(plan)
    _, later = start_training(plan, state=state, round=1)
    for slot in (GATE, f"{GATE}.buffers"):
        assert all(torch.equal(leaf, state[slot][n]) for n, leaf in later[slot].items())
        assert any(not torch.equal(leaf, first[slot][n]) for n, leaf in later[slot].items())


def test_model_and_gate_are_clipped_apart():
    plan = tiny_plan("pfedgate(clip=0.001, gate_rate=1)", lr=1.0, epochs=1, batch_size=14)
    ((before, after, _),) = list(steps(plan))
    for slot in ("params", GATE):
        assert float(tree.norm(tree.sub(after[slot], before[slot]))) == pytest.approx(0.001, rel=1e-2)


def test_the_gate_has_its_own_learning_rate():
    def moved(method, slot):
        before, after, _ = next(steps(tiny_plan(method, lr=0.1)))
        return float(tree.norm(tree.sub(after[slot], before[slot])))

    once = moved("pfedgate(gate_lr=0.1)", GATE)
    assert moved("pfedgate(gate_lr=0.4)", GATE) == pytest.approx(4 * once, rel=1e-3)
    assert moved("pfedgate", GATE) == pytest.approx(5 * once, rel=1e-3)
    assert moved("pfedgate(gate_rate=1)", GATE) == pytest.approx(once, rel=1e-3)
    assert moved("pfedgate(gate_lr=0.4)", "params") == moved("pfedgate", "params")


@pytest.mark.parametrize(("options", "first"), [("", 1.0), ("scale_max=1", 0.5), ("preset=ref", 0.5)])
def test_scales_start_at_half_of_what_they_are_at_most(options, first):
    plan, ctx, model = trained(f"pfedgate({options})", lr=1e-6)
    x = torch.randn(64, 4)
    gates, _ = plan.method.gates(ctx, plan.method.cut(ctx.task, ctx.variant), model, x, torch.ones(64))
    assert float(gates["scale"].mean()) == pytest.approx(first, rel=0.2)
    assert float(gates["score"].mean()) == pytest.approx(0.5, rel=0.2)
    assert plan.method.first_tally(ctx)["scale"].unique().tolist() == [first]


def test_whatever_the_learning_rate_a_first_step_with_the_whole_model_is_nearly_fedavgs():
    """At scales of 1/2 it is a quarter of one in the weights, and another model's."""

    def moved(method):
        plan = tiny_plan(method, lr=1e-3)
        before, work = start(plan)
        after = before.phase.step(before, work, take_batch(plan))
        return tree.sub(after["params"], work["params"])

    def apart(method):
        ours, theirs = moved(method), moved("fedavg")
        return float(tree.norm(tree.sub(ours, theirs)) / tree.norm(theirs))

    assert apart("pfedgate(s=1)") < 0.2
    assert apart("pfedgate(s=1, scale_max=1)") > 0.5


# -- blocks and budgets -------------------------------------------------------------------------------


def test_tensors_are_cut_as_in_the_reference_code():
    """25 elements in 10 equal chunks: eight of 3 and one of 1."""
    split = methods.build("pfedgate(blocks=10, equal_chunks=true)").cut(one_layer(25), 0.5)
    assert split.sizes == {"weight": (3, 3, 3, 3, 3, 3, 3, 3, 1)}


def test_tensors_are_cut_as_in_the_paper():
    """First floor(d s_min) elements, then B - 1 chunks; short tensors have fewer blocks, at least one."""
    task = one_layer(11, 2, bias=True)
    assert methods.build("pfedgate(blocks=3, min_share=0.3)").cut(task, 0.5).sizes == {
        "weight": (6, 8, 8),
        "bias": (1, 1),
    }
    assert methods.build("pfedgate").cut(one_layer(1, 1), 0.5).sizes == {"weight": (1,)}
    shares = {s: methods.build(f"pfedgate(s={s})").cut(one_layer(100), 0.5).sizes["weight"][0] for s in (1.0, 0.5, 0.1)}
    assert shares == {1.0: 20, 0.5: 20, 0.1: 10}


def test_norms_have_no_gates_and_are_always_active():
    plan = tiny_plan("pfedgate", norm=True)
    split = plan.method.cut(plan.tasks[0], 0.5)
    assert not {"1.weight", "1.bias"} & set(split.sizes)
    masks = split.masks(split.marks(torch.zeros(split.count, dtype=torch.bool)))
    assert {name for name, mask in masks.items() if mask.all()} == {"1.weight", "1.bias"}
    thin, _ = split.thin(plan.tasks[0].net.params, {}, torch.zeros(split.count), torch.zeros(split.count, dtype=bool))
    assert torch.equal(thin["1.weight"], plan.tasks[0].net.params["1.weight"])


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("solver", ["greedy", "density", "exact"])
@pytest.mark.parametrize("s", [0.8, 0.5, 0.3, 0.15])
@pytest.mark.filterwarnings("ignore:pfedgate. what always stays")
def test_every_batch_keeps_to_the_budget(s, solver, norm):
    plan = tiny_plan(f"pfedgate(s={s}, solver={solver})", norm=norm, lr=0.5)
    split = plan.method.cut(plan.tasks[0], s)
    total = tree.size(plan.tasks[0].net.params)
    allowed = max(int(s * total + 1e-9), split.always)
    densities = [counted(mask) for _, _, mask in steps(plan)]
    assert len(densities) == 8
    assert all(split.always <= each <= allowed for each in densities)
    assert solver != "greedy" or max(densities) > 0.9 * allowed


def test_the_whole_model_is_active_at_s_1():
    assert all(counted(mask) == 83 for _, _, mask in steps(tiny_plan("pfedgate(s=1)")))


def test_what_always_stays_may_exceed_the_budget_with_a_warning():
    """Five equal chunks at s = 0.1: of 24, 6, 30, 5, 15 and 3 numbers the first 5 + 2 + 6 + 1 + 3 + 1 = 18."""
    with pytest.warns(UserWarning, match=r"more than s=0\.1 allows \(8\).* run at 0\.217"):
        plan = tiny_plan("pfedgate(s=0.1, equal_chunks=true)")
    done = list(steps(plan))
    assert all(counted(mask) == 18 for _, _, mask in done)
    assert float(done[-1][1][TALLY]["density"]) == pytest.approx(18 / 83)


def test_blocks_that_do_not_fit_are_skipped_and_only_the_first_stay():
    """100 numbers in blocks of 10 and 90, half of them allowed: the second block never fits."""
    split = Blocks.of(one_layer(100), 0.5, 2, 0.1, False, "greedy")
    assert split.sizes["weight"] == (10, 90)
    assert split.select(torch.tensor([0.1, 0.9])).tolist() == [True, False]


def test_of_scores_that_are_equal_up_to_round_off_the_lower_index_wins():
    method = methods.build("pfedgate(blocks=4, min_share=0.25)")
    split = method.cut(one_layer(4), 0.5)
    scores = torch.tensor([0.1, 0.5, 0.5000004, 0.4999996])
    _, active = method.choose(split, {"scale": torch.ones(4), "score": scores}, 0.5)
    assert active.tolist() == [True, True, False, False]


def test_clients_take_their_budgets_in_turn():
    plan = tiny_plan("pfedgate(s=[0.6, 0.3])")
    assert [plan.method.variant(i) for i in range(4)] == [0.6, 0.3, 0.6, 0.3]
    for index, s in enumerate((0.6, 0.3, 0.6, 0.3)):
        state = train_client(plan, index).state
        assert s - 0.1 < float(state[TALLY]["density"]) <= s


# -- what moves, and what is sent ---------------------------------------------------------------------


@pytest.mark.parametrize("split", ["blocks", "structured"])
@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9, weight_decay=0.1), Adam(amsgrad=True)])
def test_inactive_coordinates_do_not_move_whatever_the_optimiser(optimizer, split):
    for before, after, mask in steps(tiny_plan(f"pfedgate(s=0.4, split={split})", norm=True, optimizer=optimizer)):
        states = [slot for slot in before if slot.startswith("params:") and not slot.endswith("count")]
        assert states
        for slot in ("params", *states):
            for name, leaf in before[slot].items():
                assert torch.equal(after[slot][name][~mask[name]], leaf[~mask[name]]), (slot, name)
        assert any(not torch.equal(after["params"][n], leaf) for n, leaf in before["params"].items())


class Drifting(PFedGate):
    """A method whose every step also moves all of the model a little."""

    @property
    def optimizer_step(self):
        return self.drift

    def drift(self, ctx, work, slot, grad, batch, lr):
        after = ctx.apply(work, slot, grad, lr)
        return {**after, "params": tree.map(lambda leaf: leaf + 0.1, after["params"])}


@pytest.mark.parametrize("split", ["blocks", "structured"])
@pytest.mark.parametrize("kind", [PFedGate, Drifting])
def test_inactive_coordinates_do_not_move_without_a_state_either(kind, split):
    plan = tiny_plan(kind(s=0.4, split=split), optimizer=SGD(clip=1.0))
    for before, after, mask in steps(plan):
        for name, leaf in before["params"].items():
            assert torch.equal(after["params"][name][~mask[name]], leaf[~mask[name]]), name
        assert any(not torch.equal(after["params"][n], leaf) for n, leaf in before["params"].items())


@pytest.mark.parametrize("split", ["blocks", "structured"])
def test_the_share_of_a_batch_is_that_of_its_masks(split):
    task = chain()
    cut = methods.build(f"pfedgate(s=0.5, split={split})").cut(task, 0.5)
    active = cut.select(torch.rand(cut.count))
    masks = cut.masks(cut.marks(active))
    assert {name: mask.shape for name, mask in masks.items()} == {n: leaf.shape for n, leaf in task.net.params.items()}
    assert float(cut.share(active)) == pytest.approx(counted(masks) / tree.size(masks))


@pytest.mark.parametrize("split", ["blocks", "structured"])
def test_the_union_of_a_rounds_active_coordinates_is_sent(split):
    plan = tiny_plan(f"pfedgate(s=0.4, split={split})", lr=1.0)
    union = {n: torch.zeros_like(leaf, dtype=bool) for n, leaf in plan.tasks[0].net.params.items()}
    done = list(steps(plan))
    last = done[-1][1]
    for _, _, mask in done:
        union = tree.map(torch.logical_or, union, mask)
    outcome = train_client(plan)
    upload = outcome.upload
    assert all(torch.equal(upload.masks["params"][n], mask) for n, mask in union.items())
    assert all(torch.equal(upload.slots["params"][n], leaf) for n, leaf in last["params"].items())
    share = counted(union) / tree.size(union)
    assert 0.4 < share < 1
    assert float(outcome.state[TALLY]["sent"]) == pytest.approx(share)


def test_a_sparse_upload_is_counted_by_what_it_carries():
    plan = tiny_plan("pfedgate(s=0.3)", epochs=1, batch_size=14)
    upload = train_client(plan).upload
    active = counted(upload.masks["params"])
    bits = sum(
        (leaf.numel() + 7) // 8 for n, leaf in upload.slots["params"].items() if not upload.masks["params"][n].all()
    )
    found = codec.size({"params": upload.slots["params"]}, upload.masks)
    assert active <= 0.3 * 83
    assert 4 * active < found <= 4 * active + min(bits, 4 * active)
    assert found < codec.size({"params": upload.slots["params"]})


def test_what_stays_on_the_client_is_neither_sent_nor_masked():
    plan = tiny_plan("pfedgate", norm=True, norm_affine="local")
    upload = train_client(plan).upload
    assert set(upload.masks["params"]) == set(upload.slots["params"])
    assert not {"1.weight", "1.bias"} & set(upload.masks["params"])
    assert set(upload.slots) == {"params", "buffers", "weight"}


def served(method, after):
    """Server slots after the toy round of Appendix A: three blocks of one number that start at (10, 20, 30)."""
    plan = replace(tiny_plan(method), tasks=(one_layer(3),))
    masks = {1: (1, 0, 1), 2: (0, 1, 1), 3: (1, 1, 0), 4: (1, 1, 1)}
    uploads = {
        i: Upload(
            {
                "params": {"weight": torch.tensor([after[i]])},
                "buffers": {},
                "weight": {"samples": torch.tensor(float(i))},
            },
            {"params": {"weight": torch.tensor([mask]).bool()}},
        )
        for i, mask in masks.items()
    }
    server = {"params": {"weight": torch.tensor([[10.0, 20.0, 30.0]])}, "buffers": {}}
    return aggregate(plan.server(0), server, uploads)["params"]["weight"].flatten().tolist()


VALUES = {1: [11.0, 20.0, 31.0], 2: [10.0, 22.0, 32.0], 3: [13.0, 23.0, 30.0], 4: [14.0, 24.0, 34.0]}


def test_the_server_averages_each_block_over_those_who_sent_it():
    """Appendix A, weights 1 to 4, updates equal to the client's number: block 0 moves by
    (1 x 1 + 3 x 3 + 4 x 4) / (1 + 3 + 4) = 26 / 8, block 1 by 29 / 9, block 2 by (1 + 4 + 16) / 7 = 3."""
    assert served("pfedgate", VALUES) == pytest.approx([10 + 26 / 8, 20 + 29 / 9, 33.0])


def test_the_server_may_divide_by_all_and_may_take_smaller_steps():
    assert served("pfedgate(denominator=all)", VALUES) == pytest.approx([12.6, 22.9, 32.1])
    assert served("pfedgate(server_step=0.5)", VALUES) == pytest.approx([10 + 13 / 8, 20 + 29 / 18, 31.5])


def test_what_nobody_activated_keeps_its_value():
    plan = tiny_plan("pfedgate(fixed=true, s=0.3)", rounds=1, epochs=1)
    first, after = plan.tasks[0].net.params, play(plan).server["params"]
    masks = next(steps(plan))[2]
    assert counted(masks) < 83
    for name, mask in masks.items():
        assert torch.equal(after[name][~mask], first[name][~mask])


# -- the structured split -----------------------------------------------------------------------------


def chain():
    """A convolution with batch normalisation, and two dense layers."""
    torch.manual_seed(0)
    layers = [("conv", nn.Conv2d(1, 4, 3)), ("norm", nn.BatchNorm2d(4)), ("relu", nn.ReLU()), ("pool", nn.MaxPool2d(2))]
    layers += [("flatten", nn.Flatten()), ("fc1", nn.Linear(36, 6)), ("act", nn.Sigmoid()), ("fc2", nn.Linear(6, 3))]
    module = nn.Sequential(OrderedDict(layers))
    with torch.no_grad():
        module.norm.running_mean.normal_(), module.norm.running_var.uniform_(0.5, 2.0), module.norm.bias.normal_()
    return Task(module, (torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])), classes=3)


SCORES = torch.tensor([0.1, 0.9, 0.2, 0.8, 0.7, 0.1, 0.6, 0.2, 0.9, 0.3])


@pytest.mark.parametrize("train", [False, True])
def test_the_structured_model_is_the_small_network_one_would_build_by_hand(train):
    """s = 0.5 keeps channels 1 and 3 of four and neurons 0, 2 and 4 of six, each row times its gate."""
    task, split = chain(), Rows.of(chain(), 0.5)
    split = replace(split, task=task)
    active, scale = split.select(SCORES), torch.linspace(0.5, 1.5, 10)
    assert active.nonzero().flatten().tolist() == [1, 3, 4, 6, 8]
    small = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3), nn.Sigmoid(),
        nn.Linear(3, 3),
    )  # fmt: skip
    full, state = task.net.params, task.net.buffers
    channels, neurons = torch.tensor([1, 3]), torch.tensor([0, 2, 4])
    gates, others = scale[channels], scale[4 + neurons]
    columns = torch.cat([torch.arange(9, 18), torch.arange(27, 36)])
    small.load_state_dict(
        {
            "0.weight": full["conv.weight"][channels] * gates[:, None, None, None],
            "0.bias": full["conv.bias"][channels] * gates,
            "1.weight": full["norm.weight"][channels],
            "1.bias": full["norm.bias"][channels],
            "1.running_mean": state["norm.running_mean"][channels],
            "1.running_var": state["norm.running_var"][channels],
            "1.num_batches_tracked": state["norm.num_batches_tracked"],
            "5.weight": full["fc1.weight"][neurons][:, columns] * others[:, None],
            "5.bias": full["fc1.bias"][neurons] * others,
            "7.weight": full["fc2.weight"][:, neurons],
            "7.bias": full["fc2.bias"],
        }
    )
    x = torch.randn(5, 1, 8, 8)
    out = task.net.apply(*split.thin(full, state, scale, active), x, train)
    assert torch.allclose(out.outputs, small.train(train)(x), atol=1e-6)
    after = split.restore(out.buffers, state, active)
    for key in ("running_mean", "running_var"):
        assert torch.allclose(after[f"norm.{key}"][channels], small[1].state_dict()[key], atol=1e-6)
        others = torch.tensor([0, 2])
        assert torch.equal(after[f"norm.{key}"][others], state[f"norm.{key}"][others])
    assert int(after["norm.num_batches_tracked"]) == int(train)


def test_gradients_reach_gathered_rows_and_inputs_only():
    task, split = chain(), Rows.of(chain(), 0.5)
    active = split.select(SCORES)
    params = {name: leaf.clone().requires_grad_() for name, leaf in task.net.params.items()}
    batch = Batch(torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1]), torch.ones(5))
    task.loss(*split.thin(params, task.net.buffers, torch.ones(10), active), batch).loss.backward()
    masks = split.masks(split.marks(active))
    for name, leaf in params.items():
        assert not leaf.grad[~masks[name]].any()
    assert masks["conv.weight"].flatten(1).all(1).tolist() == [False, True, False, True]
    assert masks["norm.weight"].tolist() == [False, True, False, True]
    assert masks["fc1.weight"].sum(1).tolist() == [18, 0, 18, 0, 18, 0]
    assert masks["fc2.weight"].tolist() == [[True, False, True, False, True, False]] * 3
    assert masks["fc2.bias"].all()


@pytest.mark.parametrize(("s", "kept"), [(1.0, [4, 6]), (0.5, [2, 3]), (0.3, [1, 1]), (0.1, [1, 1]), (0.99, [3, 5])])
def test_every_hidden_layer_keeps_exactly_its_share_of_rows_and_at_least_one(s, kept):
    split = Rows.of(chain(), s)
    assert [layer.rows_kept for layer in split.layers] == [*kept, 3]
    for scores in (SCORES, torch.zeros(10), torch.rand(10)):
        active = split.select(scores)
        assert [int(active[here].sum()) for here in split.groups.values()] == kept


@pytest.mark.parametrize("model", ["mlp(hidden=[20, 10])", "lenet5w", "cnn4"])
def test_the_structured_split_takes_the_feed_forward_networks(model):
    class Described:
        input_shape, outputs, tokens = (1, 16, 16), 4, False

    x, y = torch.randn(3, 1, 16, 16), torch.tensor([0, 1, 3])
    task = Task(build(model, Described()), (x, y), classes=4)
    method = methods.build("pfedgate(split=structured, s=0.3)")
    method.check(task)
    split = method.cut(task, 0.3)
    params, buffers = split.thin(task.net.params, {}, torch.ones(split.count), split.select(torch.rand(split.count)))
    assert task.forward(params, buffers, x).outputs.shape == (3, 4)
    assert tree.size(params) < 0.3 * tree.size(task.net.params)


class Functional(nn.Module):
    """A chain that is written out, with activations that are no modules."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Residual(Functional):
    def __init__(self):
        super().__init__()
        self.middle = nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        return self.second(x + torch.relu(self.middle(x)))


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv1d(1, 4, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.conv(x[:, None]).view(-1, 8))


def test_a_chain_need_not_be_written_as_a_sequence():
    methods.build("pfedgate(split=structured)").check(
        Task(Functional(), (torch.randn(2, 4), torch.tensor([0, 1])), classes=3)
    )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Residual(), "rows of first, because the model is no plain chain from it to middle"),
        (Fixed(), "rows of conv, because the model is no plain chain from it to out"),
        (nn.Sequential(nn.Linear(4, 6), nn.Softmax(1), nn.Linear(6, 3)), "from it to 2: what lies between mixes rows"),
        (nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)), "but 1 is a LayerNorm"),
        (nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 3)), "but 1 is a PReLU"),
        (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.Linear(6, 3)), "but 0 is a BatchNorm1d"),
        (nn.Linear(4, 3), "but the model has none"),
    ],
)
def test_the_structured_split_names_what_is_no_chain(module, words):
    task = Task(module, (torch.randn(2, 4), torch.tensor([0, 1])), classes=3)
    with pytest.raises(ModelError, match=words) as caught:
        methods.build("pfedgate(split=structured)").check(task)
    assert "use split=blocks" in str(caught.value)
    methods.build("pfedgate").check(task)


# -- prediction ---------------------------------------------------------------------------------------


def trained(method, lr=0.5):
    """A plan, and client 0's context and personal model after a round of training."""
    plan = tiny_plan(method, lr=lr)
    return plan, *personal_model(plan, state=train_client(plan).state, round=1)


def test_a_batch_has_one_sparse_model_from_its_mean_gates():
    plan, ctx, model = trained("pfedgate(s=0.5)")
    method, x = plan.method, torch.randn(9, 4)
    split = method.cut(ctx.task, 0.5)
    per_sample = ctx.nets["gate"].apply(model[GATE], model[f"{GATE}.buffers"], (x, torch.ones(9))).outputs
    half, score = per_sample.mean(0)
    scale = method.scale_max * half
    thin, _ = split.thin(model["params"], {}, scale * split.select(score), split.select(score))
    assert torch.allclose(method.predict(ctx, model, x), ctx.task.forward(thin, {}, x).outputs, atol=1e-6)


def test_batch_wise_predictions_depend_on_the_batch_and_the_other_modes_do_not():
    x = torch.randn(40, 4) * torch.linspace(0.1, 5, 40)[:, None]
    for mode, depends in (("batch", True), ("client", False), ("sample", False)):
        plan, ctx, model = trained(f"pfedgate(gate={mode})")
        whole, apart = plan.method.predict(ctx, model, x), plan.method.predict(ctx, model, x[:1])
        assert torch.allclose(whole[:1], apart, atol=1e-6) is not depends
        assert plan.method.needs.eval_batch == (128 if mode == "batch" else None)


def test_sample_wise_is_batch_wise_on_batches_of_one():
    plan, ctx, model = trained("pfedgate")
    x = torch.randn(7, 4)
    alone = torch.cat([plan.method.predict(ctx, model, one) for one in x.split(1)])
    assert torch.equal(replace(plan.method, gate="sample").predict(ctx, model, x), alone)


def test_client_wise_gates_are_the_means_over_the_rounds_samples():
    plan = tiny_plan("pfedgate(gate=client)", epochs=1)
    ctx, work = start(plan)
    sums, count = {"scale": 0.0, "score": 0.0}, 0
    for here, batch in batches(plan, ctx, 0):
        gates, _ = plan.method.gates(ctx, plan.method.cut(ctx.task, 0.5), work, batch.x, batch.weight, train=True)
        sums = {name: total + gates[name] * len(batch.x) for name, total in sums.items()}
        count += len(batch.x)
        work = ctx.phase.step(here, work, batch)
    assert count == 14
    model = plan.method.personal_model(replace(ctx, newcomer=False), plan.method.finish(ctx, work))
    for name, total in sums.items():
        assert torch.allclose(model[TALLY][name], total / count, atol=1e-6)
    split = plan.method.cut(ctx.task, 0.5)
    active = split.select(model[TALLY]["score"].round(decimals=5))
    thin, _ = split.thin(model["params"], {}, model[TALLY]["scale"] * active, active)
    x = torch.randn(3, 4)
    assert torch.allclose(plan.method.predict(ctx, model, x), ctx.task.forward(thin, {}, x).outputs)


def test_the_exported_model_keeps_to_the_batches_of_128():
    plan, ctx, model = trained("pfedgate")
    module, x = make_module(ctx, model), torch.randn(300, 4) * torch.linspace(0.1, 5, 300)[:, None]
    parts = torch.cat([plan.method.predict(ctx, model, part) for part in (x[:128], x[128:256], x[256:])])
    assert torch.equal(module(x), parts)
    assert torch.equal(predict(plan, ctx, model, x), parts)
    assert not torch.allclose(plan.method.predict(ctx, model, x), parts)


def test_a_run_gives_each_client_a_gated_model():
    result = idiolect.run("pfedgate(split=structured)", "digits", clients=4, rounds=1, seed=0)
    outputs = result.model(0)(torch.randn(5, 1, 8, 8))
    assert outputs.shape == (5, 10)
    names = set(result.metrics.filter(result.metrics["client"] == 0)["metric"])
    assert {"density", "sent", "gate fc1"} <= names


def test_an_unseen_client_trains_its_gate_only():
    plan = tiny_plan("pfedgate", norm=True, unseen=1)
    ctx, model = personal_model(plan, index=5)
    tuned = adapt_model(plan, ctx, model, unseen=True)
    for slot in ("params", "buffers"):
        assert all(torch.equal(leaf, model[slot][n]) for n, leaf in tuned[slot].items())
    for slot in (GATE, f"{GATE}.buffers"):
        assert any(not torch.equal(leaf, model[slot][n]) for n, leaf in tuned[slot].items())


def test_fine_tuning_trains_the_model_under_a_frozen_gate():
    """One step on all 14 samples: the gate is in evaluation mode, as in prediction, and stays as it is."""
    plan = tiny_plan("finetune(pfedgate(s=1))", batch_size=14, lr=0.1)
    ctx, model = personal_model(plan)
    tuned = adapt_model(plan, ctx, model, unseen=False)
    for slot in (GATE, f"{GATE}.buffers"):
        assert all(torch.equal(leaf, model[slot][n]) for n, leaf in tuned[slot].items())
    params = {name: leaf.clone().requires_grad_() for name, leaf in model["params"].items()}
    batch = take_batch(plan, 14)
    ctx.task.score(plan.method.predict(ctx, {**model, "params": params}, batch.x), batch).backward()
    for name, leaf in params.items():
        assert torch.allclose(tuned["params"][name], leaf - 0.1 * leaf.grad, atol=1e-6)


def test_a_batch_of_one_is_not_trained_on_but_is_predicted():
    plan = tiny_plan("pfedgate")
    assert train_client(plan, 4).upload is None
    scores = evaluate(plan, 4, 0, None, download_of(plan, 4), unseen=False)
    assert all(score.value == score.value for score in scores)


# -- records, inputs, options -------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["blocks", "structured"])
def test_density_and_mean_gates_are_recorded(split):
    plan = tiny_plan(f"pfedgate(split={split})")
    found = plan.method.client_records(plan.context(0, 0), train_client(plan).state)
    hidden = ["gate 0", "gate 2"]
    assert list(found) == ["density", "sent", *hidden, *(["gate 4"] if split == "blocks" else [])]
    assert 0.2 < float(found["density"]) <= 0.5
    assert float(found["density"]) <= float(found["sent"]) <= 1
    assert all(0 < float(found[name]) < 1 for name in hidden)


def test_tokens_are_seen_as_mean_embeddings_of_the_model():
    module = nn.Sequential(nn.Embedding(20, 5), nn.Flatten(), nn.Linear(15, 3))
    task = Task(module, (torch.randint(0, 20, (2, 3)), torch.tensor([0, 1])), classes=3)
    method = methods.build("pfedgate")
    method.check(task)
    assert method.modules(task)["gate"].paths.in_features == 5
    x, y = torch.randint(0, 20, (12, 3)), torch.randint(0, 3, (12,))
    result = idiolect.run(method, [(x, y), (x.flip(0), y)], model=module, rounds=2)
    assert result.model(0)(x[:4]).shape == (4, 3)


def test_whole_numbers_without_an_embedding_are_refused():
    class Cast(nn.Linear):
        def forward(self, x):
            return super().forward(x.float())

    task = Task(Cast(3, 2), (torch.ones(2, 3, dtype=torch.long), torch.tensor([0, 1])), classes=2)
    with pytest.raises(ModelError, match=r"whole numbers \(torch.int64\), but the model has no nn.Embedding"):
        methods.build("pfedgate").check(task)


def test_a_check_leaves_random_numbers_as_they_were():
    task = one_layer(3)
    state = torch.random.get_rng_state()
    methods.build("pfedgate").check(task)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_pool_that_does_not_fit_is_found_before_anything_runs():
    with pytest.raises(ModelError, match="gate_pool=2 averages squares of positions, but a sample has the shape"):
        tiny_plan("pfedgate(gate_pool=2)")


class Wide:
    """Images that a gate per row, of LeNet-5w, could look at in full only if it were seven times as large."""

    input_shape, outputs, tokens = (3, 32, 32), 10, False


@pytest.mark.parametrize(
    ("model", "options", "pool"),
    [
        ("lenet5w", "split=structured", 4),
        ("lenet5w", "split=structured, shared_path=true", 4),
        ("lenet5w", "split=structured, gate_pool=1", 1),
        ("lenet5w", "split=structured, gate_pool=8", 8),
        ("lenet5w", "split=blocks", 1),
        ("mlp(hidden=[4])", "split=structured", 4),
    ],
)
def test_a_gate_per_row_is_at_most_half_as_large_as_the_model(model, options, pool):
    task = Task(build(model, Wide()), (torch.randn(2, 3, 32, 32), torch.tensor([0, 1])), classes=10)
    gate = methods.build(f"pfedgate({options})").modules(task)["gate"]
    assert gate.pool == pool
    if "gate_pool" not in options and "structured" in options:
        assert sum(leaf.numel() for leaf in gate.parameters()) <= tree.size(task.net.params) / 2


def test_vectors_are_not_pooled_however_large_the_gate():
    task = one_layer(50, 2)
    task = Task(nn.Sequential(nn.Linear(50, 9), nn.Linear(9, 2)), task.example, loss=task.loss_fn)
    gate = methods.build("pfedgate(split=structured)").modules(task)["gate"]
    assert gate.pool == 1
    assert sum(leaf.numel() for leaf in gate.parameters()) > tree.size(task.net.params) / 2


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("pfedgate(s=0)", r"s must lie in \(0, 1\]"),
        ("pfedgate(s=1.2)", r"s must lie in \(0, 1\]"),
        ("pfedgate(s=[0.5, 0])", r"s must lie in \(0, 1\]"),
        ("pfedgate(s=[])", r"a number in \(0, 1\] or a list of such"),
        ("pfedgate(s=[half])", "s must be a number or list of numbers"),
        ("pfedgate(s=[true])", "s must be a number or list of numbers"),
        ("pfedgate(s=half)", "s must be a number or list"),
        ("pfedgate(blocks=1)", r"blocks must lie in \[2, inf\)"),
        ("pfedgate(min_share=0)", r"min_share must lie in \(0, 1\]"),
        ("pfedgate(s=[0.5, 0.1], min_share=0.2)", r"min_share must lie in \(0, 0\.1\]"),
        ("pfedgate(split=rows)", "split must be one of blocks, structured"),
        ("pfedgate(solver=dp)", "solver must be one of density, greedy, exact"),
        ("pfedgate(gate=always)", "gate must be one of batch, client, sample"),
        ("pfedgate(gate_pool=0)", r"gate_pool must lie in \[1, inf\)"),
        ("pfedgate(gate_lr=0)", r"gate_lr must lie in \(0, inf\)"),
        ("pfedgate(clip=0)", r"clip must lie in \(0, inf\)"),
        ("pfedgate(denominator=zeros)", "denominator must be one of uploaders, all"),
        ("pfedgate(server_step=0)", r"server_step must lie in \(0, inf\)"),
        ("pfedgate(preset=theirs)", "preset must be one of paper, ref"),
    ],
)
def test_bad_options_are_refused_when_it_is_built(expression, words):
    with pytest.raises(OptionError, match=words):
        methods.build(expression)


def test_presets():
    assert methods.build("pfedgate(preset=paper)") == methods.build(
        "pfedgate(solver=exact, clip=null, scale_max=1, gate_rate=1)"
    )
    ref = methods.build("pfedgate(preset=ref, s=0.3)")
    assert (ref.s, ref.shared_path, ref.equal_chunks, ref.st_kept_only, ref.denominator) == (
        0.3,
        True,
        True,
        True,
        "all",
    )


def test_every_solver_can_be_stacked():
    """The exact solver serves the clients of a stack in turn: what it chooses for each is what it chooses alone."""
    scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(0))
    none, sizes = torch.zeros(5, dtype=torch.bool), (3, 2, 2, 4, 1)
    chosen = torch.func.vmap(lambda row: select_blocks(row, sizes, 6, none, "exact"))(scores)
    for row, active in zip(scores, chosen, strict=True):
        assert torch.equal(active, select_blocks(row, sizes, 6, none, "exact"))
    assert methods.build("pfedgate(solver=exact)").refuses.stacking == ""


def test_the_authors_program_has_two_budgets_and_scores_in_tenths():
    """A 2 x 2 convolution with 2 channels (8 weights, 2 biases) and a dense layer of 2 x 18 weights and 2 biases, in
    halves. With s = 0.75 and s_min = 0.5 a quarter of the optional blocks of each kind fits: 5 / 4 and 19 / 4 numbers,
    so the bias of each, whatever the scores of the weights; by one budget the best block is taken wherever it is."""
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(18, 2))
    task = Task(module, (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1])), classes=2)
    method = methods.build("pfedgate(preset=ref, s=0.75, blocks=2)")
    split = method.cut(task, 0.75)
    assert split.flat == [4, 4, 1, 1, 18, 18, 1, 1]
    scores = torch.tensor([0.9, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.1])
    assert split.select(scores).tolist() == [True, False, True, True, True, False, True, True]
    one = methods.build("pfedgate(preset=ref, s=0.75, blocks=2, budgets_apart=false)").cut(task, 0.75)
    assert one.select(scores).tolist() == [True, True, True, True, True, False, True, True]
    assert method.least_share(0.75) == 0.5
    assert (method.least_share(0.3), methods.build("pfedgate(blocks=20)").least_share(0.3)) == (0.3, 0.1)
    gates = {"scale": torch.ones(8), "score": torch.tensor([0.9, 0.64, 0.9, 0.6, 0.9, 0.9, 0.9, 0.62])}
    _, active = method.choose(split, gates, 0.75)  # in tenths all three are 0.6
    assert active.tolist() == [True, False, True, True, True, False, True, True]


def test_without_the_sigmoid_gates_are_what_comes_out_of_the_norms():
    gate = Gate((3,), gates=2, post_norm=False, pre_norm=False, sigmoid=False)
    raw = gate.paths(torch.ones(1, 3)).reshape(1, 2, 2)
    assert torch.equal(gate((torch.ones(1, 3), torch.ones(1))), raw)
    check_method("pfedgate(sigmoid=false)", ["messages", "pure", "through_bytes"])


def test_the_client_wise_gate_sees_the_mean_of_all_inputs_in_training_too():
    plan = tiny_plan("pfedgate(gate=mean_input)")
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), plan.data.seen).of(0)
    state = train(plan, 0, 0, None, download).state
    x, _ = plan.split(0, "train")
    assert torch.allclose(state["pfedgate.mean"]["x"], x.mean(0), atol=1e-6)
    ctx = plan.context(0, 0, newcomer=False)
    model = plan.method.personal_model(ctx, gather(ctx, state, download, training=False))
    whole = plan.method.predict(ctx, model, x)
    assert torch.allclose(whole[:3], plan.method.predict(ctx, model, x[:3]), atol=1e-6)  # whatever the batch
    check_method("pfedgate(gate=mean_input)", ["messages", "pure", "through_bytes", "stacking", "workers"])


def test_the_client_wise_gate_trains_on_batches_of_one_too():
    """The gate sees the mean of the inputs, which is one whatever the batch."""
    plan = tiny_plan("pfedgate(gate=mean_input)")
    assert len(plan.split(4, "train")[1]) == 1
    before, after = plan.tasks[0].net.params, train_client(plan, index=4)
    assert any(not torch.equal(leaf, before[name]) for name, leaf in after.upload.slots["params"].items())


def test_evaluated_dense_the_shared_model_predicts_without_gates_and_trains_the_same():
    dense, gated = play(tiny_plan("pfedgate(evaluate=dense)")), play(tiny_plan("pfedgate"))
    assert all(torch.equal(leaf, gated.server["params"][n]) for n, leaf in dense.server["params"].items())
    plan = tiny_plan("finetune(pfedgate(evaluate=dense))")
    ctx = plan.context(0, 0, newcomer=False)
    model = {slot: dense.server[slot] for slot in ("params", "buffers")}
    x, _ = plan.split(0, "train")
    expected = plan.tasks[0].forward(model["params"], model["buffers"], x).outputs
    assert torch.equal(plan.method.predict(ctx, model, x), expected)
    tuned = adapt_model(plan, ctx, model, unseen=False)
    plain = tiny_plan("finetune(fedavg)")
    wanted = adapt_model(plain, plain.context(0, 0, newcomer=False), model, unseen=False)
    assert all(torch.equal(leaf, wanted["params"][n]) for n, leaf in tuned["params"].items())


def test_one_phase_trains_model_and_gate_together():
    plan = tiny_plan("pfedgate")
    assert [phase.slots for phase in plan.method.phases(plan.context(0, 0))] == [("params", GATE)]


@pytest.mark.parametrize("method", ["fedlag(pfedgate)", "flayer(pfedgate)", "flayer(pfedgate(split=structured))"])
def test_wrappers_of_the_federated_model_can_wrap_it(method):
    check_method(method, ["messages", "pure"])
