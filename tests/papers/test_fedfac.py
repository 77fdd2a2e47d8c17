"""FedSplit and FedFac once more, written from the paper alone: explicit modules, SGD by hand, loops over clients. The
initial weights, participants and order of batches come from the plan; all else has to agree with the library."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from idiolect.contract import Training, methods
from idiolect.engines import Plan
from idiolect.engines.phases import batches
from idiolect.task.task import Task
from idiolect.testing import play, tiny_federation
from idiolect.testing.tiny import personal_models

LR = 0.1


class Net(nn.Module):
    """Two hidden layers; batch normalisation behind the first, if wanted."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm: nn.Module = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.second, self.out = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(self.norm(self.first(x)).relu()).relu())


def analyse(weights: list[Tensor], kappa: float, tau: float) -> tuple[Tensor, Tensor]:
    """Section 4.1: communalities of a layer's units, and which are shared; with a diagonal residual."""
    Z = torch.cat([weight.flatten(1).T for weight in weights]).double()
    Z = (Z - Z.mean(0)) / Z.std(0, correction=0)
    R = Z.T @ Z / len(Z)
    gamma, u = torch.linalg.eigh(R)
    gamma, u = gamma.flip(0), u.flip(1)
    G = next(m for m in range(1, len(R) + 1) if gamma[:m].sum() / gamma.sum() >= kappa)
    A = u[:, :G] * gamma[:G].sqrt()  # eq. 7
    residual = torch.diag(R - A @ A.T).clamp(1e-6, 1)
    for _ in range(100):
        gamma, u = torch.linalg.eigh(R - torch.diag(residual))
        A = u.flip(1)[:, :G] * gamma.flip(0)[:G].clamp(min=0).sqrt()
        before, residual = residual, torch.diag(R - A @ A.T).clamp(1e-6, 1)
        if (residual - before).abs().max() < 1e-6:
            break
    nu = A.square().sum(1).clamp(0, 1)
    return nu, nu >= torch.quantile(nu, tau) - 1e-6


class Paper:
    """Algorithms 1 and 2. `split` is Lambda with kappa and tau of each layer."""

    def __init__(self, plan: Plan, module: nn.Module, split: dict[str, tuple[float, float]], **how: Any) -> None:
        self.plan, self.module, self.split = plan, copy.deepcopy(module), split
        self.server_lr, self.release = how.get("server_lr", 1.0), how.get("release", "own")
        self.dynamic, self.before_round_1 = how.get("dynamic", True), how.get("before_round_1", False)
        self.server = copy.deepcopy(self.module.state_dict())
        self.shared = {at: torch.ones(len(self.server[f"{at}.weight"]), dtype=torch.bool) for at in split}
        self.shared |= how.get("given", {})
        self.is_given = "given" in how  # then personal rows are not sent
        self.nu: dict[str, Tensor] = {}
        self.shared_in = {at: torch.zeros(len(rows)) for at, rows in self.shared.items()}
        self.own: dict[int, dict[str, Tensor]] = {}
        self.trained_in: dict[int, int] = {}

    def layer_of(self, name: str) -> str | None:
        """The split layer whose units a parameter belongs to: a bias and the normalisation follow theirs."""
        layer = name.split(".")[0].replace("norm", "first")
        return layer if layer in self.split and not name.endswith("tracked") else None

    def model_of(self, client: int) -> dict[str, Tensor]:
        """W_c = {W^s, W_c^p}; whoever has not trained yet has the server's rows."""
        model = {name: leaf.clone() for name, leaf in self.server.items()}
        for name, leaf in self.own.get(client, {}).items():
            layer = self.layer_of(name)
            for j in range(len(leaf) if layer else 0):
                released = self.release == "global" and self.shared_in[layer][j] > self.trained_in[client]
                if not self.shared[layer][j] and not released:
                    model[name][j] = leaf[j]
        return model

    def train(self, client: int, round: int) -> dict[str, Tensor]:
        """ClientUpdate: epochs of SGD on the client's model."""
        self.module.load_state_dict(self.model_of(client))
        ctx = self.plan.context(client, round)
        (phase,) = self.plan.method.phases(ctx)
        for _, batch in batches(self.plan, replace(ctx, phase=phase), 0):
            loss = nn.functional.cross_entropy(self.module(batch.x), batch.y)
            with torch.no_grad():
                for weight, slope in zip(
                    self.module.parameters(), torch.autograd.grad(loss, list(self.module.parameters())), strict=True
                ):
                    weight -= LR * slope
        return copy.deepcopy(self.module.state_dict())

    def find_partition(self, sent: dict[int, dict[str, Tensor]]) -> None:
        for layer, (kappa, tau) in self.split.items():
            self.nu[layer], self.shared[layer] = analyse([m[f"{layer}.weight"] for m in sent.values()], kappa, tau)

    def play(self, rounds: int) -> None:
        if self.before_round_1:  # of each local model; the models are for the analysis alone
            self.find_partition({c: self.train(c, -1) for c in self.plan.data.seen})
        for round in range(rounds):
            for layer, rows in self.shared.items():
                self.shared_in[layer][rows] = round
            sent = {c: self.train(c, round) for c in self.plan.participants(round)}
            n = {c: len(self.plan.data.clients[c].train) for c in sent}
            for name, leaf in self.server.items():
                mean = sum(n[c] * model[name] for c, model in sent.items()) / sum(n.values())
                layer, is_param = self.layer_of(name), name in dict(self.module.named_parameters())
                moved = leaf + (self.server_lr if is_param else 1) * (mean - leaf)
                rows = self.shared[layer].view(-1, *[1] * (leaf.dim() - 1)) if layer else torch.tensor(True)
                self.server[name] = torch.where(rows, moved, leaf if self.is_given else mean)
            self.own |= sent
            self.trained_in |= dict.fromkeys(sent, round)
            if self.dynamic:
                self.find_partition(sent)
        for layer, rows in self.shared.items():
            self.shared_in[layer][rows] = rounds


def plan_of(method: str, norm: bool, **changes: Any) -> tuple[Plan, nn.Module]:
    torch.manual_seed(3)
    module, data = Net(norm).double(), tiny_federation(4 if norm else 5)  # the fifth client has a single sample
    data = replace(data, clients=tuple(replace(client, x=client.x.double()) for client in data.clients))
    x, y = data.clients[0].split("train")
    task = Task(copy.deepcopy(module), (x[:2], y[:2]), classes=3)
    training = Training(lr=LR, epochs=2, batch_size=4)
    plan = Plan(methods.build(method), (task,), data, 5, training, **({"participation": 0.6} | changes))
    module.load_state_dict({**task.initial["params"], **task.initial["buffers"]}, strict=False)
    return plan, module


ONE, TWO = {"second": (0.85, 0.5)}, {"first": (0.5, 0.25), "second": (0.95, 0.75)}
GIVEN = {"first": torch.tensor([False, True, False, False, True, True])}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("method", "split", "how"),
    [
        ("fedfac", ONE, {}),
        ("fedfac(layers=1, tau=0.75, kappa=0.5)", {"first": (0.5, 0.75)}, {}),
        ("fedfac(layers=[first, second], tau=[0.25, 0.75], kappa=[0.5, 0.95])", TWO, {}),
        ("fedfac(layers=1, on_release=global)", {"first": (0.85, 0.5)}, {"release": "global"}),
        ("fedfac(preset=paper, layers=1, server_lr=0.5)", {"first": (0.85, 0.5)},
         {"before_round_1": True, "server_lr": 0.5}),
        ("fedfac(schedule=static, layers=1, pre_epochs=3)", {"first": (0.85, 0.5)},
         {"before_round_1": True, "dynamic": False}),
        ("fedsplit(layers=first, shared=[1, 4, 5])", {"first": (1, 1)}, {"given": GIVEN, "dynamic": False}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:fedfac. the factor iteration")
def test_the_library_and_the_paper_end_in_the_same_models(
    method: str, split: dict[str, Any], how: dict[str, Any], norm: bool
) -> None:
    plan, module = plan_of(method, norm)
    paper = Paper(plan, module, split, **how)
    paper.play(plan.rounds)
    played = play(plan)
    for layer, nu in paper.nu.items():
        torch.testing.assert_close(played.server["fedfac.communality"][layer], nu, atol=1e-9, rtol=0)
        assert played.server["split.shared"][layer].equal(paper.shared[layer])
    for client, model in personal_models(plan, played).items():
        for name, leaf in {**model["params"], **model["buffers"]}.items():
            if not name.endswith("tracked"):
                expected = paper.model_of(client)[name]
                torch.testing.assert_close(leaf, expected, atol=1e-9, rtol=1e-9, msg=f"client {client}, {name}")
