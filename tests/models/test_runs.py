"""Every network trains in a run, by a method that averages its body and keeps its head, and in worker processes."""

from __future__ import annotations

import pytest
import torch

import idiolect
from idiolect.models import models

LARGE = {"densenet121", "digitmodel", "resnet18", "resnet20", "unet", "vgg16"}
NETWORKS = [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in models]


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


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_trains_in_workers_as_in_the_loop(name):
    data, models_of = clients(name), []
    for engine in ("loop", "workers"):
        result = idiolect.run("fedper", data, model=name, rounds=1, batch_size=4, engine=engine)
        models_of.append(result.personal_slots("north")["params"])
    plain, other = models_of
    assert all(torch.allclose(leaf, other[key], atol=2e-3) for key, leaf in plain.items())
