"""FedLAG's rounds written anew from the paper (algorithms 1 and 2), in plain loops, beside the library's.

Initial weights, participants and the order of batches come from the plan, so that both see the same. Nothing else does.
"""

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from idiolect.contract import Task, Training, methods
from idiolect.data import Client, Federation
from idiolect.engines import Plan
from idiolect.engines.phases import draw_order
from idiolect.testing import play
from idiolect.testing.tiny import personal_models

ROUNDS, EPOCHS, BATCH, LR = 7, 2, 4, 0.2


class Net(nn.Module):
    """Three layers, two of them in a block, with or without batch normalisation."""

    def __init__(self, norm: bool):
        super().__init__()
        # A bias before the normalisation would have no gradient but round-off, and round-off may point anywhere.
        self.body = nn.ModuleDict({"wide": nn.Linear(4, 6, bias=False), "thin": nn.Linear(6, 5)})
        self.norm = nn.BatchNorm1d(6) if norm else None
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = self.body["wide"](x)
        x = torch.relu(x if self.norm is None else self.norm(x))
        return self.head(torch.relu(self.body["thin"](x)))


LEAVES = ("body.wide.weight", "body.thin.weight", "body.thin.bias", "head.weight", "head.bias")


def divide(granularity: str) -> dict[str, list[str]]:
    """The leaves of each layer."""
    layers: dict[str, list[str]] = {}
    for leaf in LEAVES:
        key = {"tensor": leaf, "module": leaf.rpartition(".")[0], "block": leaf.partition(".")[0]}[granularity]
        layers.setdefault(key, []).append(leaf)
    return layers


def make_plan(method: str, norm: bool) -> Plan:
    """Six clients of unequal size with their own labels, four of which take part in a round."""
    draw, clients = torch.Generator().manual_seed(3), []
    for position, size in enumerate((8, 12, 6, 10, 4, 7)):
        y = torch.randint(0, 2, (size + 4,), generator=draw) + position % 2
        x = torch.randn(size + 4, 4, generator=draw) + F.one_hot((y + position) % 3, 4)
        clients.append(Client(f"c{position}", x.double(), y, *torch.arange(size + 4).split([size, 2, 2])))
    data = Federation(tuple(clients), "six", 3, "given", "0" * 12)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        task = Task(Net(norm).double(), tuple(each[:2] for each in clients[0].split("train")), classes=3)
    training = Training(lr=LR, epochs=EPOCHS, batch_size=BATCH, seed=1)
    return Plan(methods.build(method), (task,), data, ROUNDS, training, participation=0.67)


def train_client(net: Net, start: dict, plan: Plan, user: int, round: int) -> tuple[dict, dict]:
    """Algorithm 1, lines 3 to 10: a client's model after E epochs of SGD, and the gradient of its last batch."""
    net.load_state_dict(start)
    x, y = plan.data.clients[user].split("train")
    ctx = plan.context(user, round)
    ctx = type(ctx)(**{**ctx.__dict__, "phase": plan.method.phases(ctx)[0]})
    for epoch in range(EPOCHS):
        order = draw_order(ctx, len(x), len(x), ctx.phase.stream, epoch)
        for chosen in order.split(BATCH):
            net.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            with torch.no_grad():
                for leaf in net.parameters():
                    leaf -= LR * leaf.grad
    last = {name: leaf.grad.clone() for name, leaf in net.named_parameters()}
    return {name: leaf.clone() for name, leaf in net.state_dict().items()}, last


def average(models: dict, sizes: dict) -> dict:
    """Line 13: the mean of all layers, weighted by samples; of counters the largest."""
    total, mean = sum(sizes[user] for user in models), {}
    for name in next(iter(models.values())):
        leaves = {user: model[name] for user, model in models.items()}
        if name.endswith("num_batches_tracked"):
            mean[name] = max(leaves.values())
        else:
            mean[name] = sum(sizes[user] / total * leaf for user, leaf in leaves.items())
    return mean


def count_conflicts(moves: dict, names: list, xi: float) -> tuple[int, float]:
    """Algorithm 2 for one layer: the pairs of users whose cosine is below xi (eq. 3), and how much users oppose."""
    rows = {user: torch.cat([move[name].flatten() for name in names]).double() for user, move in moves.items()}
    users, count, opposed = list(rows), 0, []
    for at, u in enumerate(users):
        for v in users[at + 1 :]:
            cosine = float(rows[u] @ rows[v] / (rows[u].norm() * rows[v].norm()))
            count += cosine < xi - 1e-6
            opposed += [-cosine] * (cosine < 0)
    return count, sum(opposed) / max(1, len(opposed))


class Rules(NamedTuple):
    """How layers are scored and chosen."""

    options: str
    schedule: str = "steady"
    signal: str = "update"
    granularity: str = "module"
    k: int = 1
    xi: float = 0.0
    warmup: int = 0
    first: bool = False


def choose(layers: dict, found: dict, total: dict, calm: dict, users: int, rules: Rules) -> set[str]:
    """The k layers with the most conflicts, of those that have one: in this round, as the paper says; by default among
    the newest updates, as many as there are users; the program asks for none."""
    score = {layer: found[layer][0] if rules.schedule == "dynamic" else total[layer] for layer in layers}
    able = {
        "static": lambda layer: True,
        "dynamic": lambda layer: found[layer][0] > 0,
    }.get(rules.schedule, lambda layer: calm[layer] < users)
    able = [layer for layer in layers if able(layer)]
    later = {layer: -at if rules.first else at for at, layer in enumerate(layers)}
    able.sort(key=lambda layer: (score[layer], round(found[layer][1], 6), later[layer]), reverse=True)
    return set(able[: rules.k])


def follow_paper(plan: Plan, norm: bool, rules: Rules):
    """All rounds: the average, the clients' models, and after each round the conflicts and the personal layers."""
    net, shared = Net(norm).double(), {**plan.tasks[0].initial["params"], **plan.tasks[0].initial["buffers"]}
    sizes = {user: len(client.train) for user, client in enumerate(plan.data.clients)}
    layers, own, personal, story = divide(rules.granularity), {}, set(), []
    total, seen = dict.fromkeys(layers, 0), {layer: [] for layer in layers}
    calm = dict.fromkeys(layers, 0)  # updates since the last conflict

    def model_of(user: int) -> dict:  # eqs. 4 and 5
        kept = {name for layer in personal for name in layers[layer]}
        return {name: own.get(user, shared)[name] if name in kept else leaf for name, leaf in shared.items()}

    for round in range(ROUNDS):
        models, moves = {}, {}
        for user in plan.participants(round):
            start = model_of(user)
            models[user], last = train_client(net, start, plan, user, round)
            moved = {name: models[user][name] - start[name] for name in last}  # eq. 2
            moves[user] = last if rules.signal == "last_grad" else moved
        found = {layer: count_conflicts(moves, names, rules.xi) for layer, names in layers.items()}
        calm = {layer: 0 if found[layer][0] else calm[layer] + len(moves) for layer in layers}
        if rules.schedule == "steady":  # the mean over the rounds in which a layer was shared
            for layer in layers.keys() - personal:
                seen[layer].append(found[layer][0])
            total = {layer: sum(counts) / max(1, len(counts)) for layer, counts in seen.items()}
        else:
            total = {layer: total[layer] + found[layer][0] for layer in layers}
        if round >= rules.warmup and not (rules.schedule == "static" and personal):
            personal = choose(layers, found, total, calm, len(sizes), rules)
        shared, own = average(models, sizes), {**own, **models}
        story.append(({layer: each[0] for layer, each in found.items()}, set(personal)))
    return shared, {user: model_of(user) for user in sizes}, story


CASES = {
    "the default": Rules("k=1, xi=0, warmup=2", warmup=2),
    "the letter": Rules("preset=paper, k=1, warmup=1", "dynamic", xi=-0.1, warmup=1),
    "blocks": Rules("preset=paper, k=1, warmup=0, granularity=block", "dynamic", granularity="block", xi=-0.1),
    "the program": Rules("preset=ref, warmup=2", "static", "last_grad", "tensor", k=2, warmup=2, first=True),
    "the sum of all rounds": Rules("schedule=cumulative, k=1, xi=0, warmup=1", "cumulative", warmup=1),
    "a server that keeps models": Rules("k=1, xi=0, warmup=0, server_models=true"),
}


@pytest.mark.filterwarnings("ignore:fedlag. the personal layers changed in the last round")
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_library_follows_the_papers_rounds(case, norm):
    rules = CASES[case]
    plan = make_plan(f"fedlag({rules.options})", norm)
    shared, held, story = follow_paper(plan, norm, rules)
    played = play(plan)
    recorded = {(row[0], row[5]): row[6] for row in played.rows if row[2] == "server"}
    start = min(round for round, _ in recorded)
    for round, (conflicts, personal) in enumerate(story, start):
        assert {layer: recorded[round, f"conflicts/{layer}"] for layer in conflicts} == conflicts, round
        assert {layer for layer in conflicts if recorded[round, f"personal/{layer}"]} == personal, round
    require_close({**played.server["params"], **played.server["buffers"]}, shared)
    for user, model in personal_models(plan, played).items():
        require_close({**model["params"], **model["buffers"]}, held[user])
    assert any(personal for _, personal in story)


def require_close(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        assert torch.allclose(found[name].double(), leaf.double(), atol=1e-6, rtol=0), name
