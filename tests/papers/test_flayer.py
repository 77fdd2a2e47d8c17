"""FLAYER against a plain program, written from the paper alone: its clients are ordinary modules, its server a dict.
Only batch order, initial weights and sampled clients come from the library, so that both see the same data."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from idiolect.contract import Task
from idiolect.engines.phases import batches
from idiolect.testing import play, tiny_plan
from idiolect.testing.tiny import personal_models

LAYERS = 3
ROUNDS = 5


class Net(nn.Module):
    """Three layers that are called by hand, with a normalisation after the first or without."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else None
        self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(x if self.norm is None else self.norm(x))
        return self.last(F.relu(self.second(x)))


def groups(net):
    """The parameters that have one rate and one mask, with the layer i: a normalisation counts to the one before it."""
    depth = {"first": 1, "norm": 1, "second": 2, "last": 3}
    return [(i, [f"{name}.weight", f"{name}.bias"]) for name, i in depth.items() if getattr(net, name) is not None]


class PlainClient:
    """One client: its own module (with its own running statistics), its accuracy and its samples. Of the head's s
    layers it keeps its own values."""

    def __init__(self, initial, s, x, y):
        self.net, self.accuracy, self.x, self.y = copy.deepcopy(initial), 0.0, x, y
        head = [name for i, names in groups(initial) if i > LAYERS - s for name in names]
        self.own_head = {n: leaf.detach().clone() for n, leaf in initial.named_parameters() if n in head}

    def mix(self, received):
        """Eq. 2: the global model, but in its head A parts of the own one."""
        a = self.accuracy
        return {n: a * self.own_head[n] + (1 - a) * v if n in self.own_head else v for n, v in received.items()}

    def train(self, received, epochs, lr, cap):
        """Algorithm 1, lines 6 to 10: mixed start, rates by the first gradients of an epoch, masks by the change."""
        params = dict(self.net.named_parameters())
        start = self.mix(received)
        with torch.no_grad():
            for name, leaf in params.items():
                leaf.copy_(start[name])
        self.net.train()
        for epoch in epochs:
            for step, (x, y) in enumerate(epoch):
                loss = F.cross_entropy(self.net(x), y)
                grads = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
                if step == 0:
                    rates = [self.rate(i, [grads[n] for n in names], cap) for i, names in groups(self.net)]
                with torch.no_grad():
                    for rate, (_, names) in zip(rates, groups(self.net), strict=True):
                        for name in names:
                            params[name] -= lr * rate * grads[name]
        trained = {n: leaf.detach().clone() for n, leaf in params.items()}
        self.net.eval()
        with torch.no_grad():
            self.accuracy = float((self.net(self.x).argmax(1) == self.y).double().mean())
        self.own_head = {n: trained[n] for n in self.own_head}
        return trained, self.masks(start, trained)

    @staticmethod
    def rate(i, grads, cap):
        """Eq. 4, as a multiple of the run's."""
        norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))
        return min(cap, 1 + math.log(1 + 1 / max(norm, 1e-8)) * i / LAYERS)

    def masks(self, start, trained):
        """Eq. 5 to 8; the last layer whole."""
        masks = {}
        for i, names in groups(self.net):
            moved = torch.cat([(trained[n] - start[n]).abs().flatten() for n in names])
            share = min(max(i / LAYERS, 0.1), 1.0)
            ranked = sorted(range(len(moved)), key=lambda place, moved=moved: -float(moved[place]))
            chosen = set(ranked[: max(1, round(share * len(moved)))])
            chosen = {place for place in chosen if i == LAYERS or moved[place] > 0}
            flags = torch.tensor([place in chosen for place in range(len(moved))])
            for name, part in zip(names, flags.split([trained[n].numel() for n in names]), strict=True):
                masks[name] = part.view_as(trained[name])
        return masks


def average(before, sent):
    """Line 12 over those who sent a coordinate; one that nobody sent keeps its value. `sent`: samples, values, mask."""
    after = {}
    for name, old in before.items():
        total, weight = torch.zeros_like(old, dtype=torch.double), torch.zeros_like(old, dtype=torch.double)
        for samples, values, masks in sent:
            total += samples * masks[name] * values[name].double()
            weight += samples * masks[name]
        after[name] = torch.where(weight > 0, total / weight.clamp(min=1), old.double()).float()
    return after


def make_plan(norm, s, cap, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        net = Net(norm)
    # With batch normalisation a batch of one cannot be trained on: of 14, 9, 6 and 3 samples, batches of 7 leave none.
    method = f"flayer(layers={s}, lr_max_mult={cap})"
    plan = tiny_plan(method, rounds=ROUNDS, participation=0.6, seed=seed, batch_size=7, lr=0.1)
    x, y = plan.data.clients[0].split("train")
    return replace(plan, tasks=(Task(net, (x[:2], y[:2]), classes=3),)), net


def epochs_of(plan, index, round):
    """The library's batches of a client's training, epoch by epoch."""
    ctx = plan.context(index, round)
    here = [(batch.x, batch.y) for _, batch in batches(plan, replace(ctx, phase=plan.method.phases(ctx)[0]), 0)]
    epochs = plan.training.epochs
    per_epoch = len(here) // epochs
    return [here[epoch * per_epoch : (epoch + 1) * per_epoch] for epoch in range(epochs)]


@pytest.mark.parametrize(
    ("norm", "s", "cap", "seed"), [(False, 1, 1.6, 0), (False, 2, 5.0, 1), (True, 2, 1.6, 0), (True, 1, 100.0, 1)]
)
def test_rounds_with_absent_clients_equal_a_plain_program(norm, s, cap, seed):
    """What the server has, what a client keeps, and what every client predicts with, absent ones and newcomers too."""
    plan, net = make_plan(norm, s, cap, seed)
    shared = {n: leaf.detach().clone() for n, leaf in net.named_parameters()}
    clients = {i: PlainClient(net, s, *plan.split(i, "train")) for i in plan.data.seen}
    played = play(plan)
    absent, mixed = 0, []
    for round in range(ROUNDS):
        sent = []
        for index in plan.participants(round):
            client, epochs = clients[index], epochs_of(plan, index, round)
            if epochs[0]:  # else it has no batch, sends nothing and stays as it was
                mixed.append(client.accuracy)
                sent.append((len(client.y), *client.train(shared, epochs, plan.training.lr, cap)))
        absent += len(clients) - len(sent)
        shared = average(shared, sent)
    assert absent
    assert any(0 < accuracy < 1 for accuracy in mixed)  # else equation 2 would mix nothing
    for name, leaf in played.server["params"].items():
        assert torch.allclose(leaf, shared[name], rtol=0, atol=1e-6), name
    for index, model in personal_models(plan, played).items():
        for name, leaf in clients[index].mix(shared).items():
            assert torch.allclose(model["params"][name], leaf, rtol=0, atol=1e-6), (index, name)
        for name, leaf in clients[index].net.named_buffers():
            assert torch.allclose(model["buffers"][name].double(), leaf.double(), rtol=0, atol=1e-6), (index, name)
        if (state := played.clients[index]) is not None:
            assert state["flayer.accuracy"]["share"].item() == pytest.approx(clients[index].accuracy, abs=1e-6)
