"""FedAvg, Local and fine-tuning: the methods all others are measured against."""

from dataclasses import replace

import torch
from torch import nn

from idiolect import Federation, run
from idiolect.contract import methods
from idiolect.core import tree
from idiolect.core.randomness import generator
from idiolect.engines import Loop, Plan
from idiolect.engines.client_round import train
from idiolect.engines.phases import batches
from idiolect.engines.slots import aggregate
from idiolect.task.task import Task
from idiolect.testing import play, play_params, tiny_plan
from idiolect.testing.scalar import make_upload, start_training


def pool() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(53, 4, generator=draw), torch.randint(0, 3, (53,), generator=draw)


def test_one_client_is_plain_sgd_to_the_bit():
    """The reference is written with PyTorch's own optimiser and data in the engine's order of batches."""
    x, y = pool()
    data = Federation.from_clients([{"train": (x, y), "val": (x, y), "test": (x, y)}])
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    result = run("fedavg", data, model=module, rounds=3, local_epochs=2, batch_size=8, lr=0.1, momentum=0.9)

    torch.set_num_threads(1)
    for round in range(3):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(2):
            order = torch.from_numpy(generator(0, "batches train", round, 0, epoch).permutation(53))
            for part in order.split(8):
                optimizer.zero_grad()
                (nn.functional.cross_entropy(module(x[part]), y[part], reduction="none").sum() / len(part)).backward()
                optimizer.step()
    trained = result.model(0, round=-1).state_dict()
    assert all(torch.equal(leaf, trained[name]) for name, leaf in module.state_dict().items())


def test_the_hand_worked_example():
    """Two clients with 1 and 3 samples train the scalar 0 to 4 and to 8; the mean is (4 + 24) / 4 = 7."""
    plan = tiny_plan("fedavg")
    sent = enumerate([(4.0, 1.0), (8.0, 3.0)])
    uploads = {i: make_upload({"params": {"w": torch.tensor(value)}}, samples) for i, (value, samples) in sent}
    after = aggregate(plan.server(0), {"params": {"w": torch.tensor(0.0)}, "buffers": {}}, uploads)
    assert after["params"]["w"].item() == 7.0


def test_everyone_downloads_the_server_model():
    plan = tiny_plan("fedavg")
    server = tree.map(lambda leaf: leaf + 1, plan.tasks[0].net.params)
    _, work = start_training(plan, {"params": server, "buffers": {}})
    assert all(torch.equal(work["params"][name], leaf) for name, leaf in server.items())


def test_local_sends_nothing_and_clients_differ():
    result = play(tiny_plan("local"))
    assert all(
        torch.equal(leaf, tiny_plan("local").tasks[0].net.params[n]) for n, leaf in result.server["params"].items()
    )
    own = play_params(tiny_plan("local"))
    assert not torch.equal(own[0]["0.weight"], own[1]["0.weight"])


def test_local_equals_training_alone():
    """Client 1 in a federation of five ends where it ends in a federation of its own."""
    plan = tiny_plan("local")
    state = None
    for round in range(plan.rounds):
        state = train(plan, 1, round, state, {"params": {}, "buffers": {}}).state
    together = play(plan).clients[1]
    assert all(torch.equal(leaf, together["private"][name]) for name, leaf in state["private"].items())


def test_fine_tuning_leaves_the_federation_alone():
    tuned, plain = play(tiny_plan("finetune(fedavg, epochs=3)")), play(tiny_plan("fedavg"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in tuned.server["params"].items())
    points = {row[3] for row in tuned.rows}
    assert points == {"train", "personal", "adapted"}


def test_fine_tuning_is_plain_steps_on_the_personal_model():
    plan = tiny_plan("finetune(fedavg, epochs=1, lr=0.2)")
    model = {"params": plan.tasks[0].net.params, "buffers": {}}
    (phase,) = plan.method.adapt(plan.context(0, 0))
    ctx, batch = next(batches(plan, replace(plan.context(0, 0), phase=phase), 0))
    grad = ctx.grad(model, "params", batch).tree
    stepped = phase.step(ctx, model, batch)["params"]
    assert all(torch.equal(leaf, torch.add(model["params"][n], grad[n], alpha=-0.2)) for n, leaf in stepped.items())


def test_the_engine_is_given_by_a_plan_alone():
    x, y = pool()
    data = Federation.from_clients([(x, y), (x + 1, y)])
    plan = Plan(methods.build("fedavg"), (Task(nn.Linear(4, 3), (x[:2], y[:2]), classes=3),), data, rounds=1)
    assert set(play(plan, Loop).clients) == {0, 1}
