"""Means class by class: over batches, over clients, and distances from them."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.parts.class_statistics import (
    add_rows,
    distance,
    empty,
    feature_size,
    merge_means,
    no_features,
    require_classes,
    rows,
    shared_means,
)
from idiolect.core.errors import ModelError
from idiolect.core.sums import Sums
from idiolect.testing import tiny_plan
from idiolect.testing.scalar import context_of

DRAW = torch.Generator().manual_seed(0)
VALUES, Y = torch.randn(20, 3, generator=DRAW), torch.randint(0, 3, (20,), generator=DRAW)


def means(values: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, batch: int) -> dict[str, torch.Tensor]:
    """Class means of four classes, the last of which nobody has, batch by batch."""
    found = empty(4, values.shape[1], values)
    for at in range(0, len(y), batch):
        found = add_rows(found, values[at : at + batch], y[at : at + batch], weight[at : at + batch])
    return found


def sums_of(clients: list[dict[str, torch.Tensor]]) -> Sums:
    """What the server sees of clients' means: every class weighed by its count."""
    return Sums.of([(client, client["count"], None) for client in clients])


def test_the_servers_slot_weighs_every_class_by_its_count():
    slot = shared_means("my.means", lambda ctx: empty(4, 3, VALUES))
    assert (slot.home, slot.down, slot.up, slot.weigh) == ("server", True, "sum", "my.means/count")


@pytest.mark.parametrize("batch", [20, 7, 1])
def test_batches_add_up_to_the_means_of_all(batch):
    found = means(VALUES, Y, torch.ones(20), batch)
    for c in range(3):
        assert torch.allclose(found["mean"][c], VALUES[c == Y].mean(0), atol=1e-5)
        assert found["count"][c] == (c == Y).sum()


def test_an_absent_class_has_count_and_mean_zero():
    found = means(VALUES, Y, torch.ones(20), 20)
    assert found["count"][3] == 0
    assert not found["mean"][3].any()


def test_padding_counts_as_nothing():
    weight = torch.cat([torch.ones(12), torch.zeros(8)])
    padded, plain = means(VALUES, Y, weight, 20), means(VALUES[:12], Y[:12], torch.ones(12), 12)
    assert all(torch.allclose(leaf, plain[name]) for name, leaf in padded.items())


def test_clients_means_are_weighed_by_their_counts_of_the_class():
    parts = [means(VALUES[:5], Y[:5], torch.ones(5), 5), means(VALUES[5:], Y[5:], torch.ones(15), 15)]
    whole = means(VALUES, Y, torch.ones(20), 20)
    both = merge_means(sums_of(parts), empty(4, 3, VALUES))
    assert all(torch.allclose(leaf, whole[name], atol=1e-5) for name, leaf in both.items())


def test_a_class_that_nobody_has_keeps_its_mean():
    before = {"mean": torch.full((4, 3), 9.0), "count": torch.full((4,), 2.0)}
    both = merge_means(sums_of([means(VALUES, Y, torch.ones(20), 20)]), before)
    assert both["mean"][3].tolist() == [9.0] * 3
    assert both["count"][3] == 2.0
    assert not (both["mean"][:3] == 9.0).any()


def test_at_first_nothing_is_known_of_any_class():
    first = no_features(context_of(tiny_plan("fedavg")))
    assert {name: leaf.tolist() for name, leaf in first.items()} == {"mean": [[0.0] * 5] * 3, "count": [0.0] * 3}


def test_the_distance_leaves_out_padding_and_unknown_classes():
    known = {"mean": torch.zeros(4, 3), "count": torch.tensor([1.0, 1.0, 0.0, 0.0])}
    weight = torch.cat([torch.ones(12), torch.zeros(8)])
    by_hand = sum(float(VALUES[i].square().mean()) for i in range(12) if Y[i] < 2) / 12
    assert distance(VALUES, Y, weight, known).item() == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (2, 3, 4, 5)])
def test_every_position_with_a_class_is_a_row_of_its_own(shape):
    """Five features for every one of 3 x 4 positions, in second or last place."""
    batch = Batch(torch.zeros(2, 1), torch.arange(24).reshape(2, 3, 4), torch.tensor([1.0, 0.0]))
    features, y, weight = rows(torch.randn(shape), batch)
    assert features.shape == (24, 5)
    assert torch.equal(y, torch.arange(24))
    assert weight.tolist() == [1.0] * 12 + [0.0] * 12


def test_the_feature_size_is_what_enters_the_last_layer():
    module = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
    task = Task(module, (torch.zeros(2, 4), torch.tensor([0, 1])), classes=3)
    assert feature_size(task) == 7


def test_a_task_without_classes_is_refused():
    task = Task(nn.Linear(2, 1), (torch.zeros(2, 2), torch.zeros(2, 1)))
    with pytest.raises(ModelError, match="fedpac treats every class by itself"):
        require_classes("fedpac", task)
