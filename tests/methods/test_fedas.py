"""FedAS: received bodies are aligned with own class means, and clients are weighed by Fisher information."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.method import Phase, Upload, methods
from idiolect.core import tree
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines.client import batches, run_phases, train, tuned_view
from idiolect.methods.fedas import FISHER, OWN, PROTOTYPES
from idiolect.testing import check_method, play, tiny_plan, views

HEAD = {"4.weight", "4.bias"}


def entered(plan, phase, index=0, newcomer=False):
    """A client's context in one of its phases, and its working slots at the beginning of the round."""
    ctx = plan.context(index, 1, newcomer)
    server = plan.method.server_init(plan.server(1))
    server["params"] = tree.map(lambda leaf: leaf + 0.1, server["params"])
    download = plan.method.download(plan.server(1), server, (index,)).of(index)
    work = plan.method.begin(ctx, plan.method.client_init(ctx), download)
    ctx.phase = next(each for each in plan.method.phases(ctx) if each.name == phase)
    return ctx, {**work, "log": {"loss": torch.zeros(()), "samples": torch.zeros(())}}


# -- alignment ---------------------------------------------------------------------------------------------


def test_the_hand_worked_alignment():
    """Prototypes 1 and 3, features 2 and 2: the loss is (1 + 1) / 2, its slopes in the features 1 and -1. With the
    body b x at b = 1 and x = (2, 2) its slope in b is 1 x 2 - 1 x 2 = 0; at x = (2, 4), the features being (2, 4), the
    slopes are 1 and 1, and that in b is 1 x 2 + 1 x 4 = 6."""
    plan = tiny_plan("fedas", lr=7.0)
    ctx, _ = entered(plan, "align")
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    ctx.task = Task(module, (torch.ones(2, 1), torch.tensor([0, 1])), classes=2)
    params = {"0.weight": torch.ones(1, 1), "1.weight": torch.ones(2, 1)}
    zero = torch.zeros(())
    work = {"params": params, "buffers": {}, "log": {"loss": zero, "samples": zero}}
    work[PROTOTYPES] = {"mean": torch.tensor([[1.0], [3.0]]), "count": torch.ones(2)}
    ctx.phase = Phase("align", part=frozenset({"0.weight"}), lr=0.01)
    for x, slope in (((2.0, 2.0), 0.0), ((2.0, 4.0), 6.0)):
        batch = Batch(torch.tensor(x)[:, None], torch.tensor([0, 1]), torch.ones(2))
        after = plan.method.step(ctx, work, batch)
        assert after["params"]["0.weight"].item() == pytest.approx(1 - 0.01 * slope)
        assert torch.equal(after["params"]["1.weight"], params["1.weight"])
        assert after["log"] is work["log"]


def test_prototypes_are_the_own_models_class_means_over_all_batches():
    """They are those of the model of last time, not of the received body; an absent class counts 0."""
    plan = tiny_plan("fedas")
    ctx, work = entered(plan, "prototypes", index=2)
    found, _ = run_phases(plan, ctx, plan.method.phases(ctx)[:1], work)
    x, y = plan.split(2, "train")
    features = ctx.task.forward(work[OWN[0]], {}, x).features
    assert torch.allclose(found[PROTOTYPES]["mean"][1], features[y == 1].mean(0), atol=1e-6)
    assert found[PROTOTYPES]["count"].tolist() == [0.0, 6.0, 0.0]
    assert not torch.equal(work["params"]["0.weight"], work[OWN[0]]["0.weight"])


def test_the_gradient_of_alignment_by_finite_differences():
    plan = tiny_plan("fedas(align_lr=1.0)")
    ctx, work = entered(plan, "align")
    x, y = plan.split(0, "train")
    batch = Batch(x[:6].double(), y[:6], torch.tensor([1.0, 1, 1, 1, 1, 0]).double())
    work = {s: {n: leaf.double() for n, leaf in each.items()} for s, each in work.items()}
    work[PROTOTYPES] = {"mean": torch.ones(3, 5).double(), "count": torch.tensor([3.0, 0.0, 1.0]).double()}

    def value(params):
        off = (ctx.task.forward(params, {}, batch.x).features - 1).square().mean(1)
        return float((off * (batch.y != 1) * batch.weight).sum() / 5)

    after = plan.method.step(ctx, work, batch)
    assert after["params"].keys() == work["params"].keys()
    for name, leaf in work["params"].items():
        at, ends = (0,) * leaf.ndim, []
        for sign in (1, -1):
            moved = leaf.clone()
            moved[at] += sign * 1e-6
            ends.append(value({**work["params"], name: moved}))
        moved_by = (leaf - after["params"][name])[at].item()
        assert moved_by == pytest.approx(0.0 if name in HEAD else (ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_alignment_brings_the_received_body_nearer_to_the_own_features():
    plan = tiny_plan("fedas(align_epochs=5, align_lr=0.1)")
    ctx, work = entered(plan, "align")
    after, _ = run_phases(plan, ctx, plan.method.phases(ctx)[:2], work)
    x, y = plan.split(0, "train")

    def off(model):
        return float((ctx.task.forward(model, {}, x).features - after[PROTOTYPES]["mean"][y]).square().mean())

    assert off(after["params"]) < off(work["params"])


def test_a_client_that_trains_for_the_first_time_has_nothing_to_align_with():
    plan = tiny_plan("fedas")
    names = {new: [p.name for p in plan.method.phases(plan.context(0, 0, new))] for new in (True, False)}
    assert names == {True: ["train", "fisher"], False: ["prototypes", "align", "train", "fisher"]}


# -- Fisher information ------------------------------------------------------------------------------------


def test_the_hand_worked_weights():
    """F = 25 each averages bodies 2 and 4 to 3, whatever the sample counts; F = 25 and 75, to 3.5."""
    plan = tiny_plan("fedas")
    before = {"params": {"0.weight": torch.tensor(0.0)}, "buffers": {}}
    for traces, wanted in (((25.0, 25.0), 3.0), ((25.0, 75.0), 3.5)):
        uploads = {
            i: Upload(
                {
                    "params": {"0.weight": torch.tensor(body)},
                    "buffers": {},
                    "weight": {"samples": torch.tensor(samples)},
                    FISHER: {"trace": torch.tensor(trace)},
                }
            )
            for i, (body, samples, trace) in enumerate(zip((2.0, 4.0), (1.0, 9.0), traces, strict=True))
        }
        assert plan.method.aggregate(plan.server(0), before, uploads)["params"]["0.weight"].item() == wanted


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_no_information_at_all_keeps_the_body_and_the_runs_weighting_is_not_used(weighting):
    plan = tiny_plan("fedas", weighting=weighting)
    before = {"params": {"0.weight": torch.tensor(7.0)}, "buffers": {}}
    slots = {"params": {"0.weight": torch.tensor(1.0)}, "buffers": {}, "weight": {"samples": torch.tensor(3.0)}}
    upload = Upload({**slots, FISHER: {"trace": torch.tensor(0.0)}})
    assert plan.method.aggregate(plan.server(0), before, {0: upload})["params"]["0.weight"].item() == 7.0


def test_the_trace_is_the_sum_over_batches_of_squared_gradients_of_the_trained_model():
    """Client 0 has 14 samples: batches of 4, 4, 4 and 2, in the order of a first pass over them."""
    plan = tiny_plan("fedas")
    download = plan.method.download(plan.server(0), plan.method.server_init(plan.server(0)), (0,)).of(0)
    outcome = train(plan, 0, 0, None, download)
    ctx, total = plan.context(0, 0), 0.0
    ctx.phase = plan.method.phases(ctx)[-1]
    for batch in batches(plan, ctx, 1):
        leaves = {n: leaf.clone().requires_grad_() for n, leaf in outcome.state[OWN[0]].items()}
        ctx.task.loss(leaves, {}, batch).loss.backward()
        total += sum(float(leaf.grad.square().sum()) for leaf in leaves.values())
    assert outcome.upload.slots[FISHER]["trace"].item() == pytest.approx(total, rel=1e-5)


# -- what is kept and what predicts --------------------------------------------------------------------------


def test_without_alignment_and_fisher_weights_the_body_is_fedpers_to_the_bit():
    own, plain = play(tiny_plan("fedas(align_epochs=0, fisher=false)")), play(tiny_plan("fedper"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in own.server["params"].items())


@pytest.mark.parametrize("changed", ["align_epochs=0", "fisher=false"])
def test_the_defaults_act(changed):
    a, b = (play(tiny_plan(text)).server["params"] for text in ("fedas", f"fedas({changed})"))
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


def test_a_client_predicts_with_its_own_model_of_last_time_and_a_newcomer_with_the_received_body():
    plan = tiny_plan("fedas")
    server = plan.method.server_init(plan.server(0))
    outcome = train(plan, 0, 0, None, plan.method.download(plan.server(0), server, (0,)).of(0))
    newer = {"params": tree.drop(tree.map(lambda leaf: leaf + 5, server["params"]), HEAD), "buffers": {}}
    later = plan.method.view(plan.context(0, 1, newcomer=False), outcome.state, newer)["params"]
    assert all(torch.equal(later[n], leaf) for n, leaf in outcome.state[OWN[0]].items())
    ctx = plan.context(1, 1)
    fresh = plan.method.view(ctx, plan.method.client_init(ctx), newer)["params"]
    assert torch.equal(fresh["0.weight"], newer["params"]["0.weight"])
    assert not HEAD & outcome.upload.slots["params"].keys()


def test_an_unseen_client_trains_its_head_only():
    plan = tiny_plan("fedas", unseen=1)
    ctx, server = plan.context(5, 2), plan.method.server_init(plan.server(2))
    view = plan.method.view(ctx, plan.method.client_init(ctx), plan.method.welcome(plan.server(2), server, 5))
    tuned = tuned_view(plan, ctx, view, unseen=True)
    assert {n for n, leaf in view["params"].items() if not torch.equal(leaf, tuned["params"][n])} == HEAD


# -- options and company -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["align_epochs=-1", "align_lr=0", "fisher=2", "layers=-1"])
def test_bad_options_are_named(bad):
    with pytest.raises(OptionError, match=f"fedas: {bad.split('=')[0]}="):
        methods.build(f"fedas({bad})")


def test_a_task_without_classes_is_refused():
    task = Task(nn.Linear(4, 1), (torch.randn(2, 4), torch.zeros(2, 1)))
    with pytest.raises(ModelError, match="has none"):
        methods.build("fedas").check(task)


@pytest.mark.parametrize("wrapped", ["fedlag(fedas, warmup=0)", "flayer(fedas)", "finetune(fedas)"])
def test_wrappers_ride_on_it(wrapped):
    found = views(tiny_plan(wrapped))
    assert all(torch.isfinite(leaf).all() for view in found.values() for leaf in view.values())


@pytest.mark.parametrize("expression", ["fedas", "fedas(layers=3)", "fedas(layers=0)"])
def test_it_keeps_the_contract(expression):
    check_method(expression, ["messages", "pure", "identities"])
