"""pFedGate written a second time from its paper (Algorithm 1, section 5.2, Appendix A), in plain PyTorch: one client
after another, explicit stochastic gradient descent. Only the order of the samples, the initial values and the sampled
clients are taken from the library, so that both see the same. The two defaults that are not the paper's are tried
beside its own: scales up to TOP, and a gate that learns RATE times as fast as the model."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from idiolect import Task
from idiolect.contract import Training, methods
from idiolect.data import Federation
from idiolect.engines import Plan
from idiolect.engines.phases import batches
from idiolect.testing import play
from idiolect.testing.tiny import personal_models

LR, GATE_LR, B = 0.3, 0.4, 3
TOP, RATE = 2.0, 5.0


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.norm = nn.BatchNorm2d(3) if norm else nn.Identity()
        self.dense = nn.Linear(27, 3)

    def forward(self, x):
        return self.dense(self.norm(self.conv(x)).relu().flatten(1))


def make_plan(solver, norm, s, method, lr):
    draw = torch.Generator().manual_seed(3)
    clients = []
    for size in (11, 8, 14, 6):
        y = torch.randint(0, 3, (size + 8,), generator=draw)
        x = torch.randn(size + 8, 2, 4, 4, generator=draw) + y[:, None, None, None] / 2
        clients.append({"train": (x[:size], y[:size]), "val": (x[:4], y[:4]), "test": (x[-6:], y[-6:])})
    torch.manual_seed(5)
    task = Task(Net(norm), (x[:2], y[:2]), classes=3)
    expression = f"pfedgate(s={s}, blocks={B}, solver={solver}, clip=null{method})"
    training = Training(lr=lr, epochs=2, batch_size=4)
    data = Federation.from_clients(clients)
    return Plan(methods.build(expression), (task,), data, rounds=3, participation=0.75, training=training)


# -- section 5.2: the gating layer, its blocks, and the sparse gated weights --------------------------------------


def gate(phi, stats, x, train, top):
    """Switchable norm, two linear maps, batch norm, sigmoid, mean over the batch; `stats` change in training. Scales
    are `top` times their sigmoids."""
    x = x.flatten(2)
    of_batch = (x.mean((0, 2)), x.var((0, 2), unbiased=False))
    if train:
        stats["pre"] = [0.9 * old + 0.1 * new.detach() for old, new in zip(stats["pre"], of_batch, strict=True)]
    else:
        of_batch = stats["pre"]
    means = x.mean(2)[:, :, None], x.mean((1, 2))[:, None, None], of_batch[0][None, :, None]
    spread = x.var(2, unbiased=False)[:, :, None], x.var((1, 2), unbiased=False)[:, None, None]
    spread = *spread, of_batch[1][None, :, None]
    mean = sum(w * m for w, m in zip(phi["pre.mean_logits"].softmax(0), means, strict=True))
    var = sum(w * v for w, v in zip(phi["pre.var_logits"].softmax(0), spread, strict=True))
    x = (x - mean) / (var + 1e-5).sqrt() * phi["pre.weight"][:, None] + phi["pre.bias"][:, None]
    raw = F.linear(x.flatten(1), phi["paths.weight"], phi["paths.bias"])
    out = F.batch_norm(raw, *stats["post"], phi["post.weight"], phi["post.bias"], training=train)
    scale, score = torch.sigmoid(out).mean(0).chunk(2)
    return top * scale, score


def blocks_of(theta, s):
    """(tensor, start, stop) of every block: the first has the share s_min, the others what is left, alike."""
    found = []
    for name, leaf in theta.items():
        if "norm" in name:
            continue
        d = leaf.numel()
        first = max(1, math.floor(d * min(1 / B, s) + 1e-9))
        size = max(1, math.ceil((d - first) / (B - 1)))
        found.append((name, 0, first))
        found += [(name, at, min(at + size, d)) for at in range(first, d, size)]
    return found


def solve(scores, theta, blocks, s, solver):
    """Equation 6, by trying all choices, or what fits by decreasing score, or by score per parameter."""
    scores = [round(float(score) * 1e5) for score in scores.detach()]
    sizes = [stop - start for _, start, stop in blocks]
    mandatory = {at for at, (_, start, _) in enumerate(blocks) if start == 0}
    room = math.floor(s * sum(leaf.numel() for leaf in theta.values()) + 1e-9)
    room -= sum(leaf.numel() for name, leaf in theta.items() if "norm" in name) + sum(sizes[at] for at in mandatory)
    optional = [at for at in range(len(blocks)) if at not in mandatory]
    if solver == "exact":
        every = (c for n in range(len(optional) + 1) for c in itertools.combinations(optional, n))
        fitting = [c for c in every if sum(sizes[at] for at in c) <= max(room, 0)]
        return mandatory | set(max(fitting, key=lambda c: sum(scores[at] for at in c)))
    chosen = set(mandatory)
    worth = {at: scores[at] if solver == "greedy" else Fraction(scores[at], sizes[at]) for at in optional}
    for at in sorted(optional, key=lambda at: -worth[at]):
        if sizes[at] <= room:
            chosen.add(at)
            room -= sizes[at]
    return chosen


def adapt(theta, blocks, scale, score, chosen):
    """Theta times M' = M I, block by block; backwards I counts as G (Appendix A)."""
    hard = torch.tensor([float(at in chosen) for at in range(len(blocks))])
    gates = scale * (hard - score.detach() + score)
    pieces = {}
    for (name, start, stop), value in zip(blocks, gates, strict=True):
        pieces.setdefault(name, []).append(theta[name].flatten()[start:stop] * value)
    return {**theta, **{name: torch.cat(parts).view_as(theta[name]) for name, parts in pieces.items()}}


# -- algorithm 1 --------------------------------------------------------------------------------------------------


def train_client(plan, index, round, theta, buffers, own, s, solver, top, gate_lr):
    """Lines 3 to 8: what the client would upload, with what was active in some batch."""
    module, blocks = plan.tasks[0].net.module, blocks_of(theta, s)
    theta, buffers = dict(theta), {name: leaf.clone() for name, leaf in buffers.items()}
    sent = {name: torch.full_like(leaf, "norm" in name, dtype=torch.bool) for name, leaf in theta.items()}
    ctx = plan.context(index, round)
    for _, batch in batches(plan, replace(ctx, phase=plan.method.phases(ctx)[0]), 0):
        moving = {name: leaf.clone().requires_grad_() for name, leaf in theta.items()}
        phi = {name: leaf.clone().requires_grad_() for name, leaf in own["phi"].items()}
        scale, score = gate(phi, own["stats"], batch.x, True, top)
        chosen = solve(score, theta, blocks, s, solver)
        sparse = adapt(moving, blocks, scale, score, chosen)
        module.train()
        loss = F.cross_entropy(functional_call(module, {**sparse, **buffers}, (batch.x,)), batch.y)
        grads = torch.autograd.grad(loss, [*moving.values(), *phi.values()])
        lr, moved = plan.training.lr, zip(theta.items(), grads[: len(theta)], strict=True)
        theta = {name: leaf - lr * grad for (name, leaf), grad in moved}
        moved = zip(own["phi"].items(), grads[len(theta) :], strict=True)
        own["phi"] = {name: leaf - gate_lr * grad for (name, leaf), grad in moved}
        for name, start, stop in (blocks[at] for at in chosen):
            sent[name].view(-1)[start:stop] = True
    return theta, buffers, sent


def play_plainly(plan, s, solver, top, gate_lr):
    """All rounds: the server's model and every client's gate."""
    net = plan.tasks[0].net
    theta, buffers = ({name: leaf.clone() for name, leaf in leaves.items()} for leaves in (net.params, net.buffers))
    start, outputs = plan.nets["gate"].params, len(plan.nets["gate"].params["post.weight"])
    gates = {
        index: {
            "phi": {name: leaf.detach().clone() for name, leaf in start.items()},
            "stats": {"pre": [torch.zeros(2), torch.zeros(2)], "post": [torch.zeros(outputs), torch.ones(outputs)]},
        }
        for index in plan.data.seen
    }
    for round in range(plan.rounds):
        chosen = plan.participants(round)
        weight = [float(len(plan.split(index, "train")[1])) for index in chosen]
        got = [train_client(plan, i, round, theta, buffers, gates[i], s, solver, top, gate_lr) for i in chosen]
        for name, before in theta.items():
            change = sum(
                p * sent[name] * (after[name] - before) for p, (after, _, sent) in zip(weight, got, strict=True)
            )
            total = sum(p * sent[name] for p, (_, _, sent) in zip(weight, got, strict=True))
            theta[name] = torch.where(total > 0, before + change / total.clamp_min(1e-9), before)
        for name in buffers:
            mean = sum(p * own[name] for p, (_, own, _) in zip(weight, got, strict=True)) / sum(weight)
            buffers[name] = mean.to(buffers[name].dtype)
    return theta, buffers, gates


def predict(plan, theta, buffers, own, x, s, solver, top):
    """One sparse model for the batch, from the gates of that batch."""
    with torch.no_grad():
        scale, score = gate(own["phi"], own["stats"], x, False, top)
        blocks = blocks_of(theta, s)
        sparse = adapt(theta, blocks, scale, score, solve(score, theta, blocks, s, solver))
        return functional_call(plan.tasks[0].net.module.eval(), {**sparse, **buffers}, (x,))


def assert_close(ours, theirs):
    for name, leaf in theirs.items():
        if leaf.is_floating_point():
            torch.testing.assert_close(ours[name], leaf, rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


SOLVED = [("density", False, 0.5), ("density", True, 0.6), ("greedy", True, 0.6), ("exact", True, 0.5)]


@pytest.mark.parametrize(
    ("method", "top", "lr", "gate_lr"),
    [(f", scale_max=1, gate_lr={GATE_LR}", 1.0, LR, GATE_LR), ("", TOP, LR / 8, RATE * LR / 8)],
    ids=["paper", "default"],
)
@pytest.mark.parametrize(("solver", "norm", "s"), SOLVED)
def test_it_is_the_papers_algorithm(solver, norm, s, method, top, lr, gate_lr):
    plan = make_plan(solver, norm, s, method, lr)
    played = play(plan)
    theta, buffers, gates = play_plainly(plan, s, solver, top, gate_lr)
    assert_close(played.server["params"], theta)
    assert_close(played.server["buffers"], buffers)
    models = personal_models(plan, played)
    for index, own in gates.items():
        if played.clients[index] is not None:
            assert_close(played.clients[index]["pfedgate.gate"], own["phi"])
        x, _ = plan.split(index, "test")
        ours = plan.method.predict(plan.context(index, 2, newcomer=False), models[index], x)
        theirs = predict(plan, theta, buffers, own, x, s, solver, top)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
