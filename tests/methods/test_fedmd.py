"""FedMD: clients with networks of their own teach each other by their scores of public samples."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Federation, Task, run
from idiolect.contract import Upload, methods
from idiolect.core import codec, tree
from idiolect.core.errors import InputError
from idiolect.engines import engines
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.client_round import train
from idiolect.engines.phases import draw_order
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.fedmd import CONSENSUS, SCORES
from idiolect.testing import (
    check_bad_options,
    check_method,
    check_wrappers_refused,
    play,
    play_params,
    require_equal,
    tiny_model,
    tiny_plan,
)


def download_of(plan, server=None, round=-1):
    ctx = plan.server(round)
    return plan.method.download(ctx, server or first_server(ctx), (0,)).shared


def digesting(plan, round):
    """The first client's context where it digests."""
    ctx = plan.context(0, round)
    phase = next(phase for phase in plan.method.phases(ctx) if phase.name == "digest")
    return replace(ctx, phase=phase)


def consensus_of(plan, clients=(0, 1, 2), round=-1):
    """The server after clients went through the set-up round."""
    uploads = {i: train(plan, i, round, None, download_of(plan, round=round)).upload for i in clients}
    ctx = plan.server(round)
    return aggregate(ctx, first_server(ctx), uploads), uploads


def test_the_hand_worked_example():
    """Scores (2, 0) and (4, 2): the consensus is (3, 1), the first client's loss 1 and its gradient (-1/2, -1/2)."""
    plan = tiny_plan("fedmd(samples=1)")
    every = {SCORES: {"scores": torch.ones(1, 2, dtype=torch.bool)}}
    uploads = {
        i: Upload({SCORES: {"scores": torch.tensor([s])}}, every) for i, s in enumerate([[2.0, 0.0], [4.0, 2.0]])
    }
    after = aggregate(plan.server(0), {}, uploads)
    assert after[CONSENSUS]["scores"].tolist() == [[3.0, 1.0]]
    assert int(after[CONSENSUS]["round"]) == 1
    task = Task(nn.Linear(1, 2, bias=False), (torch.ones(2, 1), torch.tensor([0, 1])), classes=2)
    ctx = replace(digesting(plan, 1), task=task)
    work = {"params": {"weight": torch.tensor([[2.0], [0.0]])}, "buffers": {}, **after}
    grad = plan.method.digest_grad(ctx, work, Batch(torch.ones(1, 1), torch.tensor([0]), torch.ones(1)))
    assert grad.scored.loss.item() == 1.0
    assert grad.tree["weight"].tolist() == [[-0.5], [-0.5]]


@pytest.mark.parametrize("loss", ["l1", "mse"])
def test_the_gradient_of_digesting_by_finite_differences(loss):
    """Samples of weight zero, which engines add, do not count."""
    plan = tiny_plan(f"fedmd(loss={loss})")
    ctx = digesting(plan, 0)
    params = {n: leaf.double() for n, leaf in plan.tasks[0].net.params.items()}
    draw = torch.Generator().manual_seed(3)
    target = torch.randn(5, 3, generator=draw).double()
    work = {"params": params, "buffers": {}, CONSENSUS: {"scores": target, "round": torch.tensor(0)}}
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]).double()
    batch = Batch(torch.randn(5, 4, generator=draw).double(), torch.zeros(5).long(), weight)
    grad = plan.method.digest_grad(ctx, work, batch).tree

    def value(leaves):
        off = ctx.task.forward(leaves, {}, batch.x).outputs - target
        kept = (off.abs() if loss == "l1" else off**2)[[0, 1, 3, 4]]
        return float(kept.mean())

    for name, at in (("0.weight", (2, 1)), ("2.bias", (1,)), ("4.weight", (0, 3))):
        ends = []
        for sign in (1, -1):
            moved = {**params, name: params[name].clone()}
            moved[name][at] += sign * 1e-6
            ends.append(value(moved))
        assert grad[name][at].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)


# -- what is scored is what is digested ------------------------------------------------------------------


class Spy:
    """Notes the public samples that clients score and digest."""

    def __init__(self, plan):
        self.seen = {}
        kind = type(plan.method)
        spy = self

        class Watched(kind):
            def digest_step(self, ctx, work, batch):
                spy.seen.setdefault((ctx.round, ctx.index, "digest"), []).append(batch.x)
                return super().digest_step(ctx, work, batch)

            def score(self, ctx, work, batch):
                spy.seen.setdefault((ctx.round, ctx.index, "score"), []).append(batch.x)
                return super().score(ctx, work, batch)

        self.plan = replace(plan, method=Watched(samples=plan.method.samples, digest_batch=plan.method.digest_batch))


@pytest.mark.parametrize("samples", [7, 5000])
def test_all_clients_digest_the_samples_that_all_scored_the_round_before(samples):
    spy = Spy(tiny_plan(f"fedmd(samples={samples}, digest_batch=3)", rounds=2))
    play(spy.plan)
    scored = torch.cat(spy.seen[(-1, 0, "score")])
    assert len(scored) == min(samples, 12)
    for index in (0, 1, 4):
        assert torch.equal(torch.cat(spy.seen[(0, index, "digest")]), scored)
        assert torch.equal(torch.cat(spy.seen[(-1, index, "score")]), scored)
    assert not torch.equal(torch.cat(spy.seen[(1, 0, "digest")]), scored)


def test_scores_are_logits_of_the_trained_model_row_by_row():
    plan = tiny_plan("fedmd(samples=7, digest_batch=3)")
    outcome = train(plan, 0, -1, None, download_of(plan))
    x = plan.data.public[0]
    logits = plan.tasks[0].forward(outcome.state["params"], {}, x).outputs
    for row in outcome.upload.slots[SCORES]["scores"]:
        assert any(torch.allclose(row, each, atol=1e-6) for each in logits)


def test_a_consensus_that_is_left_from_an_earlier_round_teaches_nothing():
    plan = tiny_plan("fedmd")
    server, _ = consensus_of(plan)
    ctx = digesting(plan, 0)
    x, y = plan.data.public
    work = {**plan.tasks[0].initial, **server}
    batch = Batch(x, y, torch.ones(len(x)))
    assert float(tree.norm(plan.method.digest_grad(ctx, work, batch).tree)) > 0
    later = replace(ctx, round=1)
    assert float(tree.norm(plan.method.digest_grad(later, work, batch).tree)) == 0


def test_without_a_consensus_nothing_is_digested():
    plan = tiny_plan("fedmd(public_epochs=0, private_epochs=0)")
    played = play(plan)
    assert len(played.server[CONSENSUS]["scores"]) == 12
    ctx = digesting(plan, 0)
    x, y = plan.data.public
    work = {**plan.tasks[0].initial, **download_of(plan)}
    assert plan.method.digest_grad(ctx, work, Batch(x, y, torch.ones(len(x)))) is None


def test_the_first_consensus_slot_is_of_no_round_that_digests():
    """Nobody's scores came in, so that a round finds none; what the slot says of its round is one that has passed."""
    plan = tiny_plan("fedmd")
    ctx = plan.server(0)
    assert int(first_server(ctx)[CONSENSUS]["round"]) < ctx.round


# -- the round -------------------------------------------------------------------------------------------


def test_setup_trains_on_public_then_on_own_data_and_rounds_digest_then_revisit():
    plan = tiny_plan("fedmd(digest_epochs=2)")
    names = lambda round: [phase.name for phase in plan.method.phases(plan.context(0, round))]  # noqa: E731
    assert names(-1) == ["public", "train", "score"]
    assert names(0) == ["digest", "digest", "train", "score"]


def test_digesting_brings_a_client_nearer_to_the_consensus_and_l1_and_mse_differ():
    states = {}
    for loss in ("l1", "mse"):
        plan = tiny_plan(f"fedmd(digest_epochs=30, private_epochs=3, loss={loss})", epochs=0)
        server, _ = consensus_of(plan)
        first = train(plan, 0, -1, None, download_of(plan)).state
        after = states[loss] = train(plan, 0, 0, first, download_of(plan, server, 0)).state
        x = plan.data.public[0]
        target = server[CONSENSUS]["scores"]
        off = [
            float((plan.tasks[0].forward(s["params"], {}, x[ctx_order(plan, 0)]).outputs - target).abs().mean())
            for s in (first, after)
        ]
        assert off[1] < off[0]
    assert not torch.equal(states["l1"]["params"]["4.bias"], states["mse"]["params"]["4.bias"])


def ctx_order(plan, round):
    return draw_order(digesting(plan, round), 12, 12, "digest", 0)


def test_the_training_log_is_about_the_own_data():
    """Digesting at a rate of nearly zero changes nothing, and its loss is not in the log either."""
    with_digest = tiny_plan("fedmd(digest_lr=1e-30)")
    server, _ = consensus_of(with_digest)
    without = tiny_plan("fedmd(digest_epochs=0)")
    a = train(with_digest, 0, 0, None, download_of(with_digest, server, 0))
    b = train(without, 0, 0, None, download_of(without, round=0))
    assert a.loss == pytest.approx(b.loss)


def test_only_scores_are_sent_and_they_are_counted_as_they_are():
    """12 public samples of 3 classes are 12 x 3 x 4 bytes, and as many down, with 8 for the round."""
    plan = tiny_plan("fedmd(samples=12)")
    server, uploads = consensus_of(plan)
    assert uploads[0].slots.keys() == {SCORES}
    assert codec.size({SCORES: uploads[0].slots[SCORES]}, uploads[0].masks) == 144
    assert codec.size(download_of(plan, server)) == 144 + 8
    more = tiny_plan("fedmd(samples=5000)")
    server, uploads = consensus_of(more)
    assert codec.size({SCORES: uploads[0].slots[SCORES]}, uploads[0].masks) == 144 + 4 * 36
    assert codec.size(download_of(more, server)) == 144 + 8


def test_the_mean_is_plain_whatever_the_clients_samples():
    plan = tiny_plan("fedmd(samples=12)")
    server, uploads = consensus_of(plan, (0, 4))
    wanted = (uploads[0].slots[SCORES]["scores"] + uploads[4].slots[SCORES]["scores"]) / 2
    assert torch.allclose(server[CONSENSUS]["scores"], wanted)


# -- several networks, unseen clients --------------------------------------------------------------------


@pytest.mark.usefixtures("workers_here")
def test_clients_may_have_networks_of_their_own():
    base = tiny_plan("fedmd")
    x, y = base.data.clients[0].split("train")
    other = Task(tiny_model(norm=True, width=3), (x[:2], y[:2]), classes=3)
    plan = replace(base, tasks=(*base.tasks, other), networks=(0, 1, 0, 1, 0), rounds=1)
    played = play(plan)
    assert played.clients[0]["params"]["0.weight"].shape == (6, 4)
    assert played.clients[1]["params"]["0.weight"].shape == (3, 4)
    require_equal(played, play(plan, engines.build("vector(chunk=3, count=1)").make), "vector", 1e-4)


def test_clients_learn_from_each_other():
    """A client that differs from the others only by what they say ends elsewhere: the default acts."""
    a, b = play_params(tiny_plan("fedmd")), play_params(tiny_plan("fedmd(digest_epochs=0)"))
    assert not torch.allclose(a[0]["0.weight"], b[0]["0.weight"])


def test_an_unseen_client_goes_through_setup_and_one_round():
    plan = tiny_plan("fedmd", unseen=1)
    server, _ = consensus_of(plan, round=2)
    ctx = plan.context(5, 2)
    phases = plan.method.onboard(ctx)
    assert [(phase.name, phase.data) for phase in phases] == [
        ("public", "public"),
        ("train", "train"),
        ("digest", "next public"),
        ("train", "train"),
    ]
    download = plan.method.download(plan.server(2), server, (5,)).of(5)
    model = plan.method.personal_model(ctx, gather(ctx, first_client(ctx), download, training=False))
    plain = replace(plan, method=methods.build("fedmd(digest_epochs=0)"))
    tuned, other = (adapt_model(each, each.context(5, 2), model, unseen=True) for each in (plan, plain))
    assert not torch.equal(tuned["params"]["0.weight"], other["params"]["0.weight"])


def test_it_runs_with_public_data_and_says_so_without():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 4, generator=draw), torch.randint(0, 3, (90,), generator=draw)
    data = Federation.from_pool(x[:60], y[:60], "iid", clients=3, public=(x[60:], y[60:]))
    result = run("finetune(fedmd)", data, model=tiny_model(), rounds=2, engine="loop")
    assert result.model(1)(torch.zeros(2, 4)).shape == (2, 3)
    with pytest.raises(InputError, match="public"):
        run("fedmd", Federation.from_pool(x, y, "iid", clients=3), model=tiny_model(), rounds=1, engine="loop")


# -- options ---------------------------------------------------------------------------------------------


def test_bad_options_are_refused():
    check_bad_options("fedmd", "samples=0", "loss=kl", "public_epochs=-1", "digest_batch=0", "digest_lr=0")


def test_wrappers_that_need_one_model_are_refused():
    check_wrappers_refused("fedmd", "scores of public samples")


def test_a_phase_that_looks_ahead_has_the_order_of_the_later_round():
    plan = tiny_plan("fedmd")
    now, later = ctx_order(plan, 0), ctx_order(plan, 1)
    assert not torch.equal(now, later)
    ctx = plan.context(0, 0)
    score = plan.method.phases(ctx)[-1]
    assert (score.name, score.data) == ("score", "next public")
    assert torch.equal(draw_order(replace(ctx, phase=score), 12, 12, "digest", 0), later)


def test_other_options_keep_the_contract():
    check_method("fedmd(samples=7, digest_epochs=2, digest_batch=3, loss=mse)", ["messages"])
