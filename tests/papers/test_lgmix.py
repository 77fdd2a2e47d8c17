"""LG-Mix written a second time, from the paper alone, with plain modules and loops: Algorithm 1, equations 1, 2, 6."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Task
from idiolect.contract import Training, methods
from idiolect.data import Client, Federation
from idiolect.engines import Plan
from idiolect.engines.phases import batches
from idiolect.engines.slots import first_client, gather
from idiolect.testing import play
from idiolect.testing.tiny import personal_models

SIZES = (10, 7, 6, 4, 9)
ROUNDS, LR = 7, 0.1


class Net(nn.Module):
    """A hidden layer, whose activations are the features h, and a last layer."""

    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(3)
        self.hidden, self.norm, self.last = (
            nn.Linear(4, 6),
            nn.BatchNorm1d(6) if norm else nn.Identity(),
            nn.Linear(6, 3),
        )

    def features(self, x):
        return torch.relu(self.norm(self.hidden(x)))

    def forward(self, x):
        return self.last(self.features(x))


def federation(unseen=0):
    """Clients whose inputs are shifted and scaled, each in its own way."""
    draw = torch.Generator().manual_seed(5)
    members = []
    for c, size in enumerate(SIZES):
        x = (1 + 0.4 * c) * torch.randn(size + 4, 4, generator=draw, dtype=torch.float64) + 0.5 * c
        y, at = torch.randint(0, 3, (size + 4,), generator=draw), torch.arange(size + 4)
        members.append(Client(f"site {c}", x, y, at[:size], at[size : size + 2], at[size + 2 :]))
    hidden = frozenset(range(len(SIZES) - unseen, len(SIZES)))
    return Federation(tuple(members), "sites", 3, "given", "0" * 12, None, hidden)


def plan_of(options, net, participation=0.5, unseen=0, rounds=ROUNDS):
    data = federation(unseen)
    task = Task(copy.deepcopy(net), data.clients[0].split("train"), classes=3)
    training = Training(lr=LR, epochs=2, batch_size=4)
    return Plan(methods.build(f"lgmix({options})"), (task,), data, rounds, training, participation=participation)


def numbers(net):
    """Everything of a model that is mixed: parameters and running statistics."""
    return {name: leaf.clone() for name, leaf in net.state_dict().items() if leaf.is_floating_point()}


def load(net, model):
    """A module with these numbers."""
    filled = copy.deepcopy(net)
    filled.load_state_dict({**filled.state_dict(), **model})
    return filled


def trace(rows, centered):
    """tr of sum h h^T; centred, of the features' deviations from their mean over the round."""
    h = torch.cat(rows)
    matrix = (h - h.mean(0)).T @ (h - h.mean(0)) if centered else h.T @ h
    return float(torch.trace(matrix))


def local_training(net, model, u, data, local_mode, global_mode, centered):
    """Algorithm 1, lines 3 to 7 and 10: the client's update and its ratio."""
    net, beside = load(net, model), load(net, u)
    own, other = [], []
    for x, y in data:
        net.train(local_mode == "train")
        beside.train(global_mode == "train")
        with torch.no_grad():
            own.append(copy.deepcopy(net).features(x))
            other.append(copy.deepcopy(beside).features(x))
        net.train()
        net.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for leaf in net.parameters():
                leaf -= LR * leaf.grad
    local, global_ = trace(own, centered), trace(other, centered)
    after = numbers(net)
    return {n: after[n] - model[n] for n in after}, local / (local + global_)


def lgmix(plan, net, *, history="so far", missed="lazy", modes=("train", "train"), centered=False, server_lr=1.0):
    """All rounds: the global model, every client's model and the ratios it used, in the order of its rounds."""
    u = numbers(net)
    w, raw, used = (
        {c: dict(u) for c in plan.data.seen},
        {c: [] for c in plan.data.seen},
        {c: [] for c in plan.data.seen},
    )
    for t in range(plan.rounds):
        updates = {}
        for c in plan.participants(t):
            ctx = plan.context(c, t)
            (phase,) = plan.method.phases(ctx)
            data = [(batch.x, batch.y) for _, batch in batches(plan, replace(ctx, phase=phase), 0)]
            updates[c], ratio = local_training(net, w[c], u, data, *modes, centered)
            raw[c].append(ratio)
            past = {"so far": raw[c], "before": raw[c][:-1] or raw[c], "none": raw[c][-1:]}[history]
            used[c].append(sum(past) / len(past))
        total = sum(SIZES[c] for c in updates)
        step = {n: server_lr * sum(SIZES[c] / total * updates[c][n] for c in updates) for n in u}
        u = {n: u[n] + step[n] for n in u}
        for c in w:
            if not used[c]:
                w[c] = dict(u)
            elif c in updates:
                share = used[c][-1]
                w[c] = {n: w[c][n] + share * updates[c][n] + (1 - share) * step[n] for n in u}
            elif missed == "lazy":
                w[c] = {n: w[c][n] + (1 - used[c][-1]) * step[n] for n in u}
    return u, w, used


def worst(a, b):
    return max(float((a[n] - b[n]).abs().max()) for n in b)


def flat(slots):
    return {**slots["params"], **slots["buffers"]}


SETTINGS = {
    "": {},
    "preset=paper": {"history": "before"},
    "history=false": {"history": "none"},
    "missed=ignore": {"missed": "ignore"},
    "server_lr=0.5": {"server_lr": 0.5},
    "centered=true": {"centered": True},
    "feature_mode=eval": {"modes": ("eval", "eval")},
    "preset=ref": {"centered": True, "modes": ("train", "eval")},
}


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("options", SETTINGS)
def test_the_library_does_what_the_paper_says(options, norm):
    """The global model, all personal models and all ratios, after rounds in which half of the clients took part."""
    net = Net(norm).double()
    plan = plan_of(options, net)
    played = play(plan)
    u, w, used = lgmix(plan, net, **SETTINGS[options])
    assert worst(flat(played.server), u) < 1e-6
    models = personal_models(plan, played)
    assert max(worst(flat(models[c]), w[c]) for c in w) < 1e-6
    for c, ratios in used.items():
        state = played.clients[c]
        assert (state is None) == (not ratios)
        if state is not None:
            assert float(plan.method.ratio(state)) == pytest.approx(ratios[-1], abs=1e-6)
    assert any(0 < len(ratios) < ROUNDS for ratios in used.values())


def test_the_settings_differ_by_more_than_the_tolerance():
    """Else the comparison above would not tell them apart."""
    net = Net(norm=True).double()
    models = [lgmix(plan_of(options, net), net, **named)[1] for options, named in SETTINGS.items()]
    for i, a in enumerate(models):
        assert all(max(worst(a[c], b[c]) for c in a) > 1e-4 for b in models[:i])


@pytest.mark.parametrize("missed", ["lazy", "ignore"])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_a_client_outside_gets_the_mean_of_all_personal_models(missed, norm):
    """Appendix C.3: W = sum of W_c / N over all that have one, whether they took part in the last round or not."""
    net = Net(norm).double()
    plan = plan_of(f"newcomers=mean, missed={missed}", net, unseen=1)
    played = play(plan)
    _, w, used = lgmix(plan, net, missed=missed)
    trained = [c for c in w if used[c]]
    assert len(trained) > len(plan.participants(ROUNDS - 1))
    outside = len(SIZES) - 1
    ctx = plan.context(outside, ROUNDS - 1)
    sent = plan.method.download(plan.server(ROUNDS - 1), played.server, (outside,)).of(outside)
    model = flat(plan.method.personal_model(ctx, gather(ctx, first_client(ctx), sent, training=False)))
    assert worst(model, {n: sum(w[c][n] for c in trained) / len(trained) for n in w[0]}) < 1e-6
