"""Every network trains in a run, by a method that averages its body and keeps its head; the small ones as
workers do, too."""

from __future__ import annotations

import pytest
import torch

import idiolect
from idiolect.models import models

LARGE = {"densenet121", "digitmodel", "resnet18", "resnet20", "unet", "vgg16"}


def clients(name: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Two clients of a kind that the network takes, with six samples each, four of them for training."""
    draw = torch.Generator().manual_seed(0)

    def one() -> tuple[torch.Tensor, torch.Tensor]:
        if models.get(name).takes_tokens:
            return torch.randint(0, 20, (6, 12), generator=draw), torch.arange(6) % 3
        images = torch.rand(6, 3, 32, 32, generator=draw)
        dense = torch.randint(0, 2, (6, 32, 32), generator=draw)
        return images, dense if name == "unet" else torch.arange(6) % 3

    return {"north": one(), "south": one()}


def train(name: str, engine: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The initial parameters of a network, and those of one client's model after a round."""
    result = idiolect.run("fedper", clients(name), model=name, rounds=1, batch_size=4, engine=engine)
    return result.plan.tasks[0].net.params, result.personal_slots("north")["params"]


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("name", [name for name in models if name not in LARGE])
def test_every_network_trains_in_workers_as_in_the_loop(name):
    (_, plain), (_, other) = train(name, "loop"), train(name, "workers")
    assert all(torch.allclose(leaf, other[key], atol=2e-3) for key, leaf in plain.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LARGE))
def test_large_networks_train(name):
    start, trained = train(name, "loop")
    assert start.keys() == trained.keys()
    assert all(leaf.isfinite().all() and not torch.equal(leaf, start[key]) for key, leaf in trained.items())
