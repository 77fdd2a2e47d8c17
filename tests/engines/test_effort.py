"""Gradients and forward passes are counted where they happen, alike on every engine."""

import pytest
import torch

import idiolect
from idiolect.engines.client_round import train
from idiolect.engines.slots import first_server
from idiolect.testing import tiny_plan

# Gradients and forward passes per local step of FedAvg, on clients of several sizes.
PER_STEP = {
    "fedavg": (1, 0),
    "fedper": (1, 0),
    "scaffold": (1, 0),
    "ditto": (2, 0),
    "apfl": (2, 0),
    "fedrod": (1, 0),
    "pfedme(inner_steps=3)": (3, 0),
    "fedem": (3, None),
    "lgmix": (1, 1),
    "fedalt": (2, 0),
}


def efforts(method, **settings):
    plan = tiny_plan(method, **settings)
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), plan.data.seen)
    return [train(plan, index, 0, None, download.of(index)).effort for index in plan.data.seen]


@pytest.mark.parametrize("method", PER_STEP)
def test_a_step_counts_every_gradient_and_every_pass_beside_them(method):
    gradients, passes = PER_STEP[method]
    for effort, base in zip(efforts(method), efforts("fedavg"), strict=True):
        assert effort.gradients == gradients * base.gradients
        if passes is not None:
            assert effort.passes == passes * base.gradients


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedem", "lgmix", "fedpac", "fedhkd", "fedlag(ditto)"])
def test_engines_count_alike(method):
    generator = torch.Generator().manual_seed(0)
    data = [(torch.rand(size, 6, generator=generator), torch.arange(size) % 3) for size in (40, 40, 23, 17)]
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    settings = {"data": data, "model": model, "rounds": 2, "batch_size": 5}
    counts = {
        engine: [idiolect.run(method, engine=engine, **settings).summary[name] for name in ("gradients", "passes")]
        for engine in ("loop", "workers(count=1)", "vector(chunk=4, count=1)")
    }
    assert counts["loop"][0] > 0
    assert len({tuple(numbers) for numbers in counts.values()}) == 1, counts


def test_evaluation_and_adaptation_are_no_local_training():
    settings = {"data": "digits", "clients": 4, "rounds": 2, "engine": "loop"}
    plain, tuned = (idiolect.run(m, after_local=True, **settings).summary for m in ("fedavg", "finetune(fedavg)"))
    assert (plain["gradients"], plain["passes"]) == (plain["steps"], 0)
    assert (tuned["gradients"], tuned["passes"]) == (plain["gradients"], 0)
