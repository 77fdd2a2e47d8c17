"""FedPAC: features pulled to global class means, and heads combined by a quadratic programme per client."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from idiolect import Batch, Task
from idiolect.contract import methods, tree
from idiolect.contract.parts.class_statistics import global_of
from idiolect.engines.slots import aggregate, first_server
from idiolect.methods.fedpac import PROTOTYPES, STATISTICS
from idiolect.testing import (
    check_bad_options,
    check_regression_refused,
    check_wrappers,
    play,
    play_params,
    tiny_model,
    tiny_plan,
)
from idiolect.testing.scalar import context_of, download_of, make_upload, numeric_gradient, train_client, with_log

HEAD = frozenset({"4.weight", "4.bias"})


def statistics(h: list[list[float]], variance: list[float]) -> list[dict[str, torch.Tensor]]:
    """One class, some features."""
    return [{"mean": torch.tensor([row]), "variance": torch.tensor(v)} for row, v in zip(h, variance, strict=True)]


# -- heads ---------------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """h = 0, 1, 10 and V = 1, 1, 1: for the first client diag(V) + D is [[1, 0, 0], [0, 2, 10], [0, 10, 101]].

    Among the first two a^2 + 2 b^2 is least at a = 2/3, b = 1/3, with gradient 2/3 for both; the third's, 10/3, is
    larger, so it gets nothing. Heads 3, 6 and 100 become 4.
    """
    plan = tiny_plan("fedpac")
    method, ctx = plan.method, plan.server(0)
    found = statistics([[0.0], [1.0], [10.0]], [1.0, 1.0, 1.0])
    assert method.weights(found)[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0.0])
    uploads = {
        i: make_upload(
            {"params": tree.map(lambda leaf, v=v: torch.full_like(leaf, v), ctx.initial["params"]), STATISTICS: each}
        )
        for i, (v, each) in enumerate(zip((3.0, 6.0, 100.0), found, strict=True))
    }
    head = method.combine_heads(ctx, first_server(ctx), uploads)["fedpac.head@0"]
    assert set(head) == HEAD
    assert all(torch.allclose(leaf, torch.tensor(4.0)) for leaf in head.values())


def test_weights_minimise_the_papers_form():
    """No other weights do better, with D written out as the paper has it."""
    draw = torch.Generator().manual_seed(3)
    h = torch.randn(5, 3, 4, generator=draw, dtype=torch.float64)
    variance = torch.rand(5, generator=draw, dtype=torch.float64)
    found = methods.build("fedpac(smallest=0)").weights(
        [{"mean": a, "variance": v} for a, v in zip(h, variance, strict=True)]
    )
    for i in range(5):
        apart = [
            [sum(float((h[i, k] - h[j, k]) @ (h[i, k] - h[m, k])) for k in range(3)) for m in range(5)]
            for j in range(5)
        ]
        form = torch.diag(variance) + torch.tensor(apart, dtype=torch.float64)
        best = float(found[i] @ form @ found[i])
        tries = torch.distributions.Dirichlet(torch.ones(5, dtype=torch.float64)).sample((500,))
        assert best <= float(torch.einsum("ni,ij,nj->n", tries, form, tries).min()) + 1e-12


def test_clients_with_equal_features_share_by_their_variances():
    found = methods.build("fedpac").weights(statistics([[1.0], [1.0]], [1.0, 3.0]))
    assert found.tolist() == [pytest.approx([0.75, 0.25])] * 2


def test_tiny_weights_become_zero():
    """With V = 1 and 5000 the second client would have the weight 1/5001."""
    found = methods.build("fedpac").weights(statistics([[0.0], [0.0]], [1.0, 5000.0]))
    assert found[0].tolist() == pytest.approx([0.9998, 0.0], rel=1e-3)
    assert found[0, 1] == 0


def test_where_no_weight_is_left_the_client_keeps_its_own_head():
    found = methods.build("fedpac(smallest=0.6)").weights(statistics([[0.0], [0.0]], [1.0, 1.0]))
    assert torch.equal(found, torch.eye(2, dtype=torch.float64))


def test_a_client_with_one_sample_has_no_variance_and_keeps_its_head():
    found = methods.build("fedpac").weights(statistics([[0.0], [2.0]], [0.0, 1.0]))
    assert found[0].tolist() == pytest.approx([1.0, 0.0])


def test_without_collaboration_heads_stay_with_their_clients():
    plan = tiny_plan("fedpac(collaborate=false)", rounds=1)
    played = play(plan)
    for i in range(4):
        sent = train_client(plan, i).upload.slots["params"]
        assert all(torch.equal(leaf, sent[n]) for n, leaf in played.server[f"fedpac.head@{i}"].items())


def test_private_heads_are_not_sent_and_nothing_is_measured_to_combine_them():
    plan = tiny_plan("fedpac(private_head=true)", rounds=1)
    outcome = train_client(plan, 0)
    assert not HEAD & outcome.upload.slots["params"].keys()
    assert set(outcome.state["private"]) == HEAD
    assert STATISTICS not in outcome.upload.slots
    assert not any(name.startswith("fedpac.head") for name in play(plan).server)
    assert methods.build("fedpac").needs.server_models
    assert not plan.method.needs.server_models


# -- statistics ----------------------------------------------------------------------------------------


def test_h_and_v_are_those_of_the_received_body():
    """h is the class-wise part of the mean feature, V the trace of the covariance of the features written into the
    block of their class, over n."""
    plan = tiny_plan("fedpac")
    ctx = plan.context(0, 0)
    x, y = plan.split(0, "train")
    phi = ctx.task.forward(ctx.initial["params"], {}, x).features
    blocks = torch.zeros(len(y), 3, phi.shape[1])
    blocks[torch.arange(len(y)), y] = phi
    sent = train_client(plan, 0).upload.slots[STATISTICS]
    assert torch.allclose(sent["mean"], blocks.mean(0), atol=1e-6)
    trace = blocks.flatten(1).var(0, correction=0).sum()
    assert sent["variance"].item() == pytest.approx(float(trace / len(y)), rel=1e-4)


def test_prototypes_are_those_of_the_trained_body():
    plan = tiny_plan("fedpac")
    outcome = train_client(plan, 0)
    x, y = plan.split(0, "train")
    phi = plan.tasks[0].forward(outcome.upload.slots["params"], {}, x).features
    sent = outcome.upload.slots[PROTOTYPES]
    for c in range(3):
        assert torch.allclose(sent["mean"][c], phi[y == c].mean(0), atol=1e-5)
    assert sent["count"].sum() == len(y)


def test_measuring_counts_as_no_training():
    plan = tiny_plan("fedpac")
    assert train_client(plan, 0).steps == 4 * 1 + 4 * 2


def test_global_prototypes_are_means_by_class_counts_and_unknown_classes_stay_unknown():
    plan = tiny_plan("fedpac", rounds=1)
    played = play(plan)
    sent = [train_client(plan, i).upload.slots[PROTOTYPES] for i in range(5)]
    for c in range(3):
        total = sum(each["mean"][c] * each["count"][c] for each in sent)
        mean = total / sum(each["count"][c] for each in sent)
        assert torch.allclose(played.server[PROTOTYPES]["mean"][c], mean, atol=1e-5)
    one_class = {2: train_client(plan, 2).upload}
    after = aggregate(plan.server(0), first_server(plan.server(0)), one_class)
    assert after[PROTOTYPES]["count"].tolist() == [0.0, 6.0, 0.0]


# -- training ------------------------------------------------------------------------------------------


def test_the_bodys_gradient_is_that_of_loss_and_pull():
    """Finite differences of cross-entropy + lambda / (n d) sum |phi - c_y|^2, with one class unknown and one sample
    of padding."""
    plan = tiny_plan("fedpac(lam=0.7)", lr=1.0)
    x, _ = plan.split(0, "train")
    batch = Batch(x[:5].double(), torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1.0, 1, 1, 1, 0]))
    task = Task(tiny_model().double(), (batch.x, batch.y), classes=3)
    ctx = context_of(plan, 2, round=1, task=task)
    assert (ctx.phase.name, ctx.phase.part) == ("shared", frozenset(task.names) - HEAD)
    centres = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = {"mean": centres, "count": torch.tensor([4.0, 2.0, 0.0])}
    moved = ctx.phase.step(ctx, with_log({**task.initial, global_of(PROTOTYPES): means}), batch)["params"]

    def objective(p: dict[str, torch.Tensor]) -> torch.Tensor:
        phi = F.linear(F.linear(batch.x, p["0.weight"], p["0.bias"]).relu(), p["2.weight"], p["2.bias"]).relu()
        plain = F.cross_entropy(F.linear(phi, p["4.weight"], p["4.bias"])[:4], batch.y[:4])
        pull = sum((phi[i] - centres[batch.y[i]]).square().sum() for i in (0, 1, 3)) / (4 * 5)
        return plain + 0.7 * pull

    for name, gradient in numeric_gradient(objective, task.net.params).items():
        expected = torch.zeros_like(gradient) if name in HEAD else gradient
        assert torch.allclose(task.net.params[name] - moved[name], expected, atol=1e-6), name


def test_the_first_round_has_no_pull_and_later_ones_do():
    plans = [tiny_plan(f"fedpac(lam={lam})") for lam in (0, 1)]
    first = [train_client(plan, 0).upload.slots["params"] for plan in plans]
    assert all(torch.equal(leaf, first[1][n]) for n, leaf in first[0].items())
    servers = [play(replace(plan, rounds=1)).server for plan in plans]
    later = [
        train_client(plan, 0, 1, server).upload.slots["params"] for plan, server in zip(plans, servers, strict=True)
    ]
    assert any(not torch.equal(leaf, later[1][n]) for n, leaf in later[0].items())


def test_the_head_is_trained_with_its_own_learning_rate_and_epochs():
    phases = tiny_plan("fedpac(head_epochs=3, head_lr=0.5)").method.phases(tiny_plan("fedpac").context(0, 0))
    assert [phase.name for phase in phases] == ["received", "own", "shared", "trained"]
    assert (phases[1].epochs, phases[1].lr, phases[1].part) == (3, 0.5, HEAD)


def test_the_default_acts():
    own, plain = play_params(tiny_plan("fedpac")), play_params(tiny_plan("fedrep(head_epochs=1)"))
    assert not torch.equal(own[0]["4.weight"], plain[0]["4.weight"])
    assert not torch.equal(own[0]["0.weight"], plain[0]["0.weight"])


# -- who has which head --------------------------------------------------------------------------------


def test_absent_clients_keep_the_head_of_their_last_round_and_others_have_the_mean():
    plan = tiny_plan("fedpac", participation=0.4, rounds=2)
    server = play(plan).server
    download = plan.method.download(plan.server(1), server, plan.data.seen)
    took_part = {i for round in (0, 1) for i in plan.participants(round)}
    assert 0 < len(took_part) < 5
    for i in plan.data.seen:
        head = server[f"fedpac.head@{i}"] if i in took_part else server["params"]
        params = download.of(i)["params"]
        assert all(torch.equal(leaf, head[n] if n in HEAD else server["params"][n]) for n, leaf in params.items())


def test_an_unseen_client_starts_from_the_mean_head_and_trains_only_its_head():
    plan = tiny_plan("fedpac", unseen=1)
    server = play(plan).server
    sent = download_of(plan, 5, 2, server)
    assert all(torch.equal(leaf, server["params"][n]) for n, leaf in sent["params"].items())
    (phase,) = plan.method.onboard(plan.context(5, 0))
    assert (phase.part, phase.epochs) == (HEAD, 10)


def test_wrappers_wrap_it():
    check_wrappers("fedpac")


# -- refusals ------------------------------------------------------------------------------------------


def test_a_task_without_classes_is_refused():
    check_regression_refused("fedpac", "fedpac")


def test_bad_options_are_named():
    check_bad_options("fedpac", "lam=-1", "head_epochs=-1", "head_lr=0", "smallest=1", "collaborate=2")
