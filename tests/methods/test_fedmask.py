"""FedMask: personal binary masks of frozen weights, averaged where they overlap."""

import warnings

import pytest
import torch

from idiolect import Batch, run
from idiolect.contract import Upload, methods
from idiolect.core import codec, tree
from idiolect.core.errors import ModelError
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.client_round import train
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.fedmask import KEPT, SCORES
from idiolect.testing import check_bad_options, check_method, check_wrappers_refused, play, play_params, tiny_plan

HEAD = "4.weight"


def download_of(plan, server=None):
    ctx = plan.server(0)
    return plan.method.download(ctx, server or first_server(ctx), (0,)).shared


def personal_model(ctx, state, download):
    """What a client predicts with."""
    return ctx.method.personal_model(ctx, gather(ctx, state, download, training=False))


def test_the_weights_never_change_and_are_never_sent():
    plan = tiny_plan("fedmask(layers=1)")
    start = plan.method.frozen(plan.context(0, 0))
    outcome = train(plan, 0, 0, None, download_of(plan))
    assert not outcome.upload.slots.get("params")
    for model in play_params(plan).values():
        assert all(torch.equal(leaf, start[n]) for n, leaf in model.items() if n != HEAD)
        assert ((model[HEAD] == start[HEAD]) | (model[HEAD] == 0)).all()
        assert (model[HEAD] == 0).any()


def test_masks_of_clients_differ():
    found = play_params(tiny_plan("fedmask(layers=3)"))
    assert not torch.equal(found[0]["0.weight"], found[1]["0.weight"])


def test_frozen_weights_have_one_size_and_the_drawn_signs_and_biases_are_zero():
    """The head has 5 inputs: all of its weights are plus or minus the root of 2/5."""
    plan = tiny_plan("fedmask", norm=True)
    drawn, frozen = plan.tasks[0].net.params, plan.method.frozen(plan.context(0, 0))
    head = next(n for n, leaf in drawn.items() if leaf.shape == (3, 5))
    assert torch.allclose(frozen[head].abs(), torch.tensor(0.4).sqrt())
    assert torch.equal(frozen[head] < 0, drawn[head] < 0)
    assert not frozen[head.replace("weight", "bias")].any()
    assert all(torch.equal(frozen[n], drawn[n]) for n in plan.tasks[0].norms)
    as_drawn = methods.build("fedmask(weights=drawn)").frozen(plan.context(0, 0))
    assert all(torch.equal(as_drawn[n], leaf) for n, leaf in drawn.items())


def test_scores_learn_at_a_hundred_times_the_runs_learning_rate():
    plan = tiny_plan("fedmask", lr=0.05)
    assert {phase.lr for phase in plan.method.phases(plan.context(0, 0))} == {5.0}


def test_by_default_masks_change_and_a_round_without_a_change_is_warned_of():
    with pytest.warns(UserWarning, match=r"in round 1 no bit of any client's mask changed.*raise lr"):
        play(tiny_plan("fedmask(lr=1e-9)"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(tiny_plan("fedmask", rounds=1))


def test_a_mask_costs_one_bit_per_weight_and_one_for_its_structure():
    """The head has 3 x 5 weights: 15 bits for the structure and 8 for what was kept are 2 + 1 bytes."""
    plan = tiny_plan("fedmask(layers=1)")
    upload = train(plan, 0, 0, None, download_of(plan)).upload
    assert upload.slots["fedmask.bits"][HEAD].dtype == torch.bool
    assert codec.size({"fedmask.bits": upload.slots["fedmask.bits"]}, upload.masks) == 2 + 1
    assert codec.size(download_of(plan)) == 2 + 2


def test_the_gradient_goes_straight_through_the_mask():
    """d loss / d s = w x (d loss / d theta) x sigmoid'(s) where kept, off or on, and 0 where pruned; d loss / d theta
    by finite differences."""
    plan = tiny_plan("fedmask(layers=1, weights=drawn)")
    ctx, method = plan.context(0, 0), plan.method
    frozen = {n: leaf.double() for n, leaf in plan.tasks[0].net.params.items()}
    ctx.task.net.params = frozen
    batch = Batch(torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2]), torch.ones(6).double())
    scores = {HEAD: torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double()}
    kept = {HEAD: torch.ones(3, 5, dtype=torch.bool)}
    kept[HEAD][0, :2] = False
    grad = method.grad(ctx, {SCORES: scores, KEPT: kept, "buffers": {}}, batch).tree[HEAD]
    model = {n: leaf.clone() for n, leaf in method.apply_mask(ctx, scores, kept).items()}
    for at in ((0, 0), (1, 1), (2, 4), (1, 3), (0, 4)):
        ends = []
        for sign in (1, -1):
            moved = {**model, HEAD: model[HEAD].clone()}
            moved[HEAD][at] += sign * 1e-5
            ends.append(float(ctx.task.loss(moved, {}, batch).loss))
        slope = (ends[0] - ends[1]) / 2e-5
        soft = scores[HEAD][at].sigmoid()
        wanted = float(frozen[HEAD][at] * slope * soft * (1 - soft)) if kept[HEAD][at] else 0.0
        assert grad[at].item() == pytest.approx(wanted, abs=1e-8)
    assert ((scores[HEAD] < 0) & kept[HEAD] & (grad != 0)).any()


# -- pruning ---------------------------------------------------------------------------------------------


def test_pruning_keeps_the_highest_scores_and_of_equal_ones_the_first():
    """Of 6 scores at sparsity 0.5 three stay; 0.3 and 0.3000001 are equal, so the lower index stays."""
    scores = {"w": torch.tensor([[0.1, 0.3, 0.9], [0.3000001, 0.7, -2.0]])}
    kept = methods.build("fedmask(sparsity=0.5)").prune(tiny_plan("fedmask").context(0, 0), {SCORES: scores})[KEPT]["w"]
    assert kept.tolist() == [[False, True, True], [False, True, False]]


@pytest.mark.parametrize(("sparsity", "left"), [(0.0, 15), (0.5, 8), (0.8, 3)])
def test_a_client_prunes_once_at_its_first_round_and_what_is_off_stays_off(sparsity, left):
    plan = tiny_plan(f"fedmask(layers=1, sparsity={sparsity})")
    first = train(plan, 0, 0, None, download_of(plan))
    second = train(plan, 0, 1, first.state, download_of(plan))
    assert int(first.state[KEPT][HEAD].sum()) == left
    assert torch.equal(first.state[KEPT][HEAD], second.state[KEPT][HEAD])
    assert (first.steps, second.steps) == ((4 + 8, 8) if sparsity else (8, 8))


def test_structures_are_personal():
    played = play(tiny_plan("fedmask(layers=3)"))
    assert not torch.equal(played.clients[0][KEPT]["0.weight"], played.clients[1][KEPT]["0.weight"])


# -- the server ------------------------------------------------------------------------------------------


def uploads_of(*clients):
    """Uploads of clients given as (kept, bits) over the first three weights of the head."""
    found = {}
    for index, (kept, bits) in enumerate(clients):
        mask, value = torch.zeros(3, 5, dtype=torch.bool), torch.zeros(3, 5, dtype=torch.bool)
        mask[0, :3], value[0, :3] = torch.tensor(kept), torch.tensor(bits)
        changed = {"fedmask.changed": {"bits": torch.tensor(1.0)}}
        slots = {"fedmask.bits": {HEAD: value}, **changed, "buffers": {}, "weight": {"samples": torch.tensor(2.0)}}
        found[index] = Upload(slots, {"fedmask.bits": {HEAD: mask}})
    return found


EXAMPLE = (
    ([True, True, False], [True, False, False]),
    ([True, True, False], [False, False, False]),
    ([True, False, True], [True, False, True]),
)


def test_the_hand_worked_example():
    """Means 2/3 (three have the weight), 0 (two) and undecided (one): by majority on, off, and as it is."""
    plan = tiny_plan("fedmask(layers=1, agree=0.5)")
    ctx = plan.server(0)
    server = aggregate(ctx, first_server(ctx), uploads_of(*EXAMPLE))
    assert server["fedmask.mean"][HEAD][0, :3].tolist() == pytest.approx([2 / 3, 0.0, 0.5])
    down = download_of(plan, server)
    assert down["fedmask.decided"][HEAD][0, :3].tolist() == [True, True, False]
    for index, scores in ((0, [0.4, -0.3, 0.2]), (1, [-0.4, -0.3, 0.2]), (2, [0.1, 0.6, 0.2])):
        upload = uploads_of(*EXAMPLE)[index]
        score = torch.zeros(3, 5)
        score[0, :3] = torch.tensor(scores)
        client = {SCORES: {HEAD: score}, KEPT: upload.masks["fedmask.bits"]}
        model = personal_model(plan.context(index, 0, newcomer=False), client, down)
        signs = (model["params"][HEAD][0, :3] != 0).tolist()
        assert signs == [True, False, index == 2]
        assert torch.equal(model[SCORES][HEAD].abs(), score.abs())


def test_the_server_decides_only_where_enough_agree():
    """Of the means 2/3 and 0 only the second is agreed on by nine tenths."""
    plan = tiny_plan("fedmask(layers=1)")
    ctx = plan.server(0)
    down = download_of(plan, aggregate(ctx, first_server(ctx), uploads_of(*EXAMPLE)))
    assert down["fedmask.decided"][HEAD][0, :3].tolist() == [False, True, False]
    assert not down["fedmask.on"][HEAD].any()


def test_scores_are_averaged_over_those_who_kept_the_weight_on_request():
    """Scores 0.4 and -0.2 of two who kept a weight have the mean 0.1; one alone decides nothing."""
    plan = tiny_plan("fedmask(layers=1, combine=scores)")
    ctx, sent = plan.server(0), uploads_of(*EXAMPLE[:2])
    for upload, value in zip(sent.values(), (0.4, -0.2), strict=True):
        upload.slots["fedmask.bits"][HEAD] = torch.full((3, 5), value)
        upload.masks["fedmask.bits"][HEAD][0, 1:] = False
    sent[0].masks["fedmask.bits"][HEAD][0, 2] = True
    down = download_of(plan, aggregate(ctx, first_server(ctx), sent))
    assert down["fedmask.decided"][HEAD][0, :3].tolist() == [True, False, False]
    client = {SCORES: {HEAD: torch.full((3, 5), -0.7)}, KEPT: sent[0].masks["fedmask.bits"]}
    model = personal_model(plan.context(0, 0, newcomer=False), client, down)
    assert model[SCORES][HEAD][0, :3].tolist() == pytest.approx([0.1, -0.7, -0.7])


def test_a_weight_that_too_few_have_keeps_its_earlier_mean():
    plan = tiny_plan("fedmask(layers=1)")
    ctx = plan.server(0)
    server = aggregate(ctx, first_server(ctx), uploads_of(*EXAMPLE))
    after = aggregate(ctx, server, uploads_of(EXAMPLE[1], EXAMPLE[2]))
    assert after["fedmask.mean"][HEAD][0, :3].tolist() == pytest.approx([0.5, 0.0, 0.5])
    alone = aggregate(ctx, server, uploads_of(EXAMPLE[1]))
    assert torch.equal(alone["fedmask.mean"][HEAD], server["fedmask.mean"][HEAD])


def test_without_overlap_masks_stay_personal():
    """More clients than there are can never agree, so that every client only ever has its own mask."""
    plan = tiny_plan("fedmask(layers=1, overlap=99)")
    played = play(plan)
    assert (played.server["fedmask.mean"][HEAD] == 0.5).all()
    assert any((play(tiny_plan("fedmask(layers=1)")).server["fedmask.mean"][HEAD] != 0.5).flatten().tolist())


def test_a_personal_model_needs_no_participation():
    """What a client that was away predicts with follows from its state and the newest download alone."""
    plan = tiny_plan("fedmask(layers=1)")
    ctx = plan.context(0, 5, newcomer=False)
    state = train(plan, 0, 0, None, download_of(plan)).state
    sctx = plan.server(0)
    download = download_of(plan, aggregate(sctx, first_server(sctx), uploads_of(*EXAMPLE)))
    work, model = plan.method.prepare(ctx, gather(ctx, state, download)), personal_model(ctx, state, download)
    assert all(torch.equal(work[slot][HEAD], model[slot][HEAD]) for slot in (SCORES, KEPT))
    assert torch.equal(model["params"][HEAD], plan.method.apply_mask(ctx, work[SCORES], work[KEPT])[HEAD])


# -- the rest --------------------------------------------------------------------------------------------


def test_an_unseen_client_learns_and_prunes_its_own_mask():
    plan = tiny_plan("fedmask(layers=1)", unseen=1)
    ctx = plan.context(5, 2)
    assert [phase.name for phase in plan.method.onboard(ctx)] == ["probe", "train"]
    model = personal_model(ctx, first_client(ctx), download_of(plan))
    tuned = adapt_model(plan, ctx, model, unseen=True)
    assert int(tuned[KEPT][HEAD].sum()) == 8
    assert torch.equal(tuned["params"][HEAD], plan.method.apply_mask(ctx, tuned[SCORES], tuned[KEPT])[HEAD])


def test_fine_tuning_moves_the_scores_and_keeps_the_weights_frozen():
    result = run("finetune(fedmask(layers=1), epochs=5)", clients=4, rounds=2, seed=0, engine="loop")
    model = result.model(0)
    start = result.plan.method.inner.frozen(result.plan.context(0, 0))
    own = dict(model.named_parameters())
    assert torch.equal(own["fc1.weight"], start["fc1.weight"])
    assert ((own["fc2.weight"] == start["fc2.weight"]) | (own["fc2.weight"] == 0)).all()
    check_method("finetune(fedmask)", ["momentum", "unseen_clients"])


def test_the_score_rate_is_an_option():
    moves = []
    for lr in (0.1, 0.4):
        plan = tiny_plan(f"fedmask(layers=1, lr={lr}, sparsity=0)", epochs=1, batch_size=14)
        state = train(plan, 0, 0, None, download_of(plan)).state
        moves.append(tree.sub(state[SCORES], first_client(plan.context(0, 0))[SCORES])[HEAD])
    assert torch.allclose(moves[1], 4 * moves[0], atol=1e-6)


def test_share_of_weights_that_are_on_is_recorded():
    plan = tiny_plan("fedmask(layers=1)")
    client = first_client(plan.context(0, 0))
    assert float(plan.method.client_records(plan.context(0, 0), client)["on"]) == 1.0
    half = plan.method.prune(plan.context(0, 0), client)
    assert float(plan.method.client_records(plan.context(0, 0), half)["on"]) == pytest.approx(8 / 15)


def test_bad_options_are_refused():
    check_bad_options(
        "fedmask",
        "sparsity=1",
        "sparsity=-0.1",
        "layers=0",
        "start=0",
        "lr=0",
        "overlap=0",
        "agree=0.4",
        "weights=ones",
    )


def test_more_masked_layers_than_layers_is_an_error_before_anything_runs():
    with pytest.raises(ModelError, match="3 layers"):
        methods.build("fedmask(layers=4)").check(tiny_plan("fedavg").tasks[0])


def test_wrappers_that_need_a_trained_model_are_refused():
    check_wrappers_refused("fedmask", "frozen weights")


@pytest.mark.parametrize("expression", ["fedmask(layers=3, sparsity=0)", "fedmask(combine=scores)"])
def test_it_keeps_the_contract(expression):
    check_method(expression, ["messages", "pure", "through_bytes", "batchnorm"])
