"""FedAF: clients condense their data into a few learned images, on which the server trains the global model."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract import Upload, methods
from idiolect.contract.gradients import Autograd
from idiolect.core import codec, tree
from idiolect.core.errors import ModelError
from idiolect.engines.client_round import train
from idiolect.engines.phases import run_phases
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.fedaf import FEATURES, IMAGES, LOGITS, SAMPLE, SOFT, sliced_distance
from idiolect.testing import check_bad_options, check_method, check_wrappers_refused, play, tiny_plan

SMALL = "fedaf(per_class=2, steps=3, image_lr=0.1)"


def started(plan, index=0, server=None):
    """A client's context and working slots at the beginning of the first round."""
    ctx = plan.context(index, 0)
    server = server or first_server(plan.server(0))
    download = plan.method.download(plan.server(0), server, (index,)).of(index)
    work = plan.method.prepare(ctx, gather(ctx, first_client(ctx), download))
    return ctx, {**work, "log": {"loss": torch.zeros(()), "samples": torch.zeros(())}}


def looked(plan, index=0, server=None):
    """The same after the look at the data."""
    ctx, work = started(plan, index, server)
    return ctx, run_phases(plan, ctx, plan.method.phases(ctx)[:1], work)[0]


def informed(plan):
    """A server that knows something of the classes 0 and 1."""
    server = first_server(plan.server(0))
    mean = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    return {**server, LOGITS: {"mean": mean, "count": torch.tensor([2.0, 5.0, 0.0])}}


# -- condensation ------------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """Mean feature 3, images with features 0 and 4, so 2: the loss is 1 and its gradient in each image -2 / 2 = -1."""
    plan = tiny_plan("fedaf(per_class=2, mix=1)")
    ctx, _ = started(plan)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    task = Task(module, (torch.ones(2, 1), torch.ones(2, 1)))
    ctx = replace(ctx, task=task, class_counts=torch.ones(1))
    params = {"0.weight": torch.ones(1, 1), "1.weight": torch.ones(1, 1)}
    work = {"params": params, SAMPLE: params, "buffers": {}, IMAGES: {"x": torch.tensor([[[0.0], [4.0]]])}}
    work[FEATURES] = {"mean": torch.tensor([[3.0]]), "count": torch.ones(1)}
    work[LOGITS] = {"mean": torch.zeros(1, 1), "count": torch.zeros(1)}
    grads, scored = Autograd().of_loss(plan.method.image_loss(ctx, work), {IMAGES: work[IMAGES]})
    assert scored.loss.item() == 1.0
    assert grads[IMAGES]["x"].flatten().tolist() == [-1.0, -1.0]


def test_the_sliced_distance_sorts_what_it_projects():
    """{0, 2} and {3, 1} on a line; and in the plane, where each direction counts alike."""
    a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [1.0]])
    assert sliced_distance(a, b, torch.ones(1, 1)).item() == 1.0
    plane = [torch.cat([each, torch.zeros(2, 1)], 1) for each in (a, b)]
    assert sliced_distance(*plane, torch.eye(2)).item() == 0.5
    assert sliced_distance(a, a.flip(0), torch.ones(1, 1)).item() == 0.0


def test_the_means_are_those_of_the_data_under_the_mixed_and_the_received_model():
    plan = tiny_plan(SMALL)
    ctx, work = looked(plan)
    x, y = plan.split(0, "train")
    out, seen = (ctx.task.forward(work[slot], {}, x) for slot in ("params", SAMPLE))
    for c in range(3):
        assert torch.allclose(work[FEATURES]["mean"][c], seen.features[y == c].mean(0), atol=1e-6)
        assert torch.allclose(work[f"{LOGITS}.own"]["mean"][c], out.outputs[y == c].mean(0), atol=1e-6)
        assert torch.allclose(work[SOFT]["mean"][c], out.outputs[y == c].softmax(1).mean(0), atol=1e-6)


def test_the_mixed_model_is_random_per_round_and_common_to_clients():
    plan = tiny_plan(SMALL)
    params = plan.tasks[0].net.params
    drawn = {(i, r): plan.method.sample(plan.context(i, r), params)["0.weight"] for i in (0, 1) for r in (0, 1)}
    assert torch.equal(drawn[0, 0], drawn[1, 0])
    assert not torch.equal(drawn[0, 0], drawn[0, 1])
    whole = methods.build("fedaf(mix=1)").sample(plan.context(0, 0), params)
    assert all(torch.equal(leaf, params[n]) for n, leaf in whole.items())


def test_the_gradient_of_images_by_finite_differences():
    """Classes 0 and 1 are known to all clients; client 2 has class 1 alone, and images of it alone."""
    plan = tiny_plan("fedaf(per_class=2, align=0.7)")
    ctx, work = looked(plan, 2, informed(plan))
    work = {s: {n: leaf.double() for n, leaf in each.items()} for s, each in work.items()}
    loss, images = plan.method.image_loss(ctx, work), work[IMAGES]["x"]
    found = Autograd().of_loss(loss, {IMAGES: work[IMAGES]})[0][IMAGES]["x"]
    assert images.shape == (1, 2, 4)
    for at in ((0, 0, 0), (0, 1, 2)):
        ends = []
        for sign in (1, -1):
            moved = images.clone()
            moved[at] += sign * 1e-6
            ends.append(loss({IMAGES: {"x": moved}}).loss.item())
        assert found[at].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_condensing_brings_the_features_nearer():
    plan = tiny_plan("fedaf(per_class=2, steps=30, image_lr=0.2)")
    ctx, work = looked(plan)
    after, steps = run_phases(plan, ctx, plan.method.phases(ctx)[1:], work)
    loss = plan.method.image_loss(ctx, work)
    assert steps == 30
    assert loss({IMAGES: after[IMAGES]}).loss < 0.5 * loss({IMAGES: work[IMAGES]}).loss


def test_clients_start_from_noise_of_their_own_and_go_on_with_their_images():
    plan = tiny_plan(SMALL)
    first = [first_client(plan.context(i, 0))[IMAGES]["x"] for i in (0, 1)]
    assert first[0].shape == (3, 2, 4)
    assert not torch.equal(*first)
    ctx, _ = started(plan)
    held = {IMAGES: {"x": torch.ones(3, 2, 4)}}
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0)
    assert torch.equal(plan.method.prepare(ctx, gather(ctx, held, download))[IMAGES]["x"], held[IMAGES]["x"])


def test_only_images_of_own_classes_are_sent_and_counted():
    """Client 2 has class 1 alone: 2 images of 4 numbers; and of 3 classes 3 logits, 3 soft labels and their counts."""
    plan = tiny_plan(SMALL)
    server = first_server(plan.server(0))
    upload = train(plan, 2, 0, None, plan.method.download(plan.server(0), server, (2,)).of(2)).upload
    assert upload.slots.keys() == {IMAGES, LOGITS, SOFT}
    assert upload.masks[IMAGES]["x"].flatten(1).all(1).tolist() == [False, True, False]
    assert upload.slots[LOGITS]["count"].tolist() == [0.0, 6.0, 0.0]
    assert codec.size(upload.slots, upload.masks) < codec.size(upload.slots)


def test_images_of_other_classes_stay_as_they_are():
    plan = tiny_plan(SMALL)
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), (2,)).of(2)
    before = first_client(plan.context(2, 0))[IMAGES]["x"]
    after = train(plan, 2, 0, None, download).state[IMAGES]["x"]
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.equal(after[1], before[1])


# -- the server --------------------------------------------------------------------------------------------


def sent(x, count, soft=None, mean=0.0):
    """An upload of one image per class for three classes."""
    means = {"mean": torch.full((3, 3), mean), "count": torch.tensor(count)}
    x, mask = x[:, None], (torch.tensor(count) > 0)[:, None, None].expand(3, 1, 4)
    labels = {"mean": torch.eye(3) if soft is None else soft, "count": torch.tensor(count)}
    return Upload({IMAGES: {"x": x}, LOGITS: means, SOFT: labels}, {IMAGES: {"x": mask}})


def test_the_server_trains_on_sent_images_only():
    plan = tiny_plan("fedaf(per_class=1)")
    server = first_server(plan.server(0))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    spoilt = x.clone()
    spoilt[1] = 1e6
    a, b = (aggregate(plan.server(0), server, {0: sent(each, [2.0, 0.0, 1.0])})["params"] for each in (x, spoilt))
    assert all(torch.equal(leaf, b[n]) for n, leaf in a.items())
    assert not torch.equal(a["0.weight"], server["params"]["0.weight"])


def test_mean_logits_are_averaged_by_counts_and_kept_where_nobody_has_a_class():
    plan = tiny_plan("fedaf(per_class=1)")
    server = first_server(plan.server(0))
    uploads = {
        0: sent(torch.ones(3, 4), [1.0, 0.0, 0.0], mean=2.0),
        1: sent(torch.ones(3, 4), [3.0, 1.0, 0.0], mean=6.0),
    }
    after = aggregate(plan.server(0), server, uploads)[LOGITS]
    assert after["mean"][:, 0].tolist() == [5.0, 6.0, 0.0]
    assert after["count"].tolist() == [4.0, 1.0, 0.0]


def test_the_servers_gradient_by_finite_differences():
    plan = tiny_plan("fedaf(match=0.6)")
    x, y = plan.split(0, "train")
    batch = Batch(x[:5].double(), y[:5], torch.ones(5).double())
    soft = torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    soft = soft / soft.sum(1, keepdim=True)
    params = tree.map(torch.Tensor.double, plan.tasks[0].net.params)
    loss = plan.method.server_loss(plan.server(0), {}, batch, soft)

    def value(held):
        logits = plan.tasks[0].forward(held, {}, batch.x).outputs
        divergence = (soft * (soft / logits.softmax(1)).log()).sum(1).mean()
        return float(nn.functional.cross_entropy(logits, batch.y) + 0.6 * divergence)

    grads, scored = Autograd().of_loss(loss, {"params": params})
    assert scored.loss.item() == pytest.approx(value(params))
    for name, leaf in params.items():
        at, ends = (0,) * leaf.ndim, []
        for sign in (1, -1):
            moved = leaf.clone()
            moved[at] += sign * 1e-6
            ends.append(value({**params, name: moved}))
        assert grads["params"][name][at].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_a_server_batch_of_one_is_dropped_under_batch_normalisation():
    plan = tiny_plan("fedaf(per_class=1, server_batch=2)", norm=True)
    server = first_server(plan.server(0))
    after = aggregate(plan.server(0), server, {0: sent(torch.randn(3, 4), [1.0, 1.0, 1.0])})
    assert after["buffers"]["1.num_batches_tracked"].item() == 5  # one batch of two in each of five passes


# -- prediction, options, company ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["average", "local"])
def test_all_clients_predict_with_the_servers_model_whatever_the_policy_for_normalisation(policy):
    plan = tiny_plan(SMALL, norm=True, norm_stats=policy)
    played = play(plan)
    download = plan.method.download(plan.server(2), played.server, (0,)).of(0)
    for index in (0, 3):
        ctx = plan.context(index, 2, newcomer=False)
        model = plan.method.personal_model(ctx, gather(ctx, played.clients[index] or {}, download, training=False))
        for slot in ("params", "buffers"):
            assert all(torch.equal(leaf, played.server[slot][n]) for n, leaf in model[slot].items())


@pytest.mark.parametrize("option", ["align", "match"])
def test_the_defaults_act(option):
    a, b = (
        play(tiny_plan(text)).server["params"]
        for text in ("fedaf(per_class=2, steps=3)", f"fedaf(per_class=2, steps=3, {option}=0)")
    )
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


def test_bad_options_are_named():
    check_bad_options("fedaf", "per_class=0", "steps=0", "mix=2", "align=-1", "match=-1", "server_lr=0")


def test_wrappers_that_need_a_federated_model_are_refused():
    check_wrappers_refused("fedaf", "condensed images")


def test_tokens_and_several_networks_are_refused():
    tokens = Task(
        nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 2)),
        (torch.zeros(2, 3, dtype=torch.long), torch.tensor([0, 1])),
        classes=2,
    )
    with pytest.raises(ModelError, match="whole numbers"):
        methods.build("fedaf").check(tokens)


@pytest.mark.parametrize("expression", [SMALL, "finetune(fedaf(per_class=1, steps=2))"])
def test_it_keeps_the_contract(expression):
    check_method(expression, ["messages", "pure", "through_bytes", "unseen_clients"])
