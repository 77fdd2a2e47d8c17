"""What a plan says: who takes part in a round, and which data of a client are used for what."""

from dataclasses import replace

import pytest
import torch

from idiolect.data import Client
from idiolect.data.lazy.arrays import ArraySamples
from idiolect.engines import plan
from idiolect.engines.plan import Part, join_parts, late_size, split_parts
from idiolect.testing import tiny_plan

ARRAYS = {"x": torch.arange(4.0)[:, None], "y": torch.arange(4)}


def positions(plan, index, which):
    return plan.part(index, which).positions.tolist()


@pytest.mark.parametrize(("share", "expected"), [(1.0, 5), (0.4, 2), (0.01, 1)])
def test_a_share_of_the_clients_takes_part_and_one_at_least(share, expected):
    plan = replace(tiny_plan("fedavg"), participation=share)
    assert len(plan.data.seen) == 5
    rounds = [plan.participants(round) for round in range(20)]
    assert {len(clients) for clients in rounds} == {expected}
    assert all(list(clients) == sorted(set(clients)) for clients in rounds)
    assert {client for clients in rounds for client in clients} == set(plan.data.seen)
    assert list(plan.participants(-1)) == list(plan.data.seen)


def test_a_method_that_holds_samples_out_trains_on_the_others():
    plan = tiny_plan("flayer(acc_source=holdout, holdout_share=0.4)")
    everything = plan.data.clients[0].train.tolist()
    held, rest = positions(plan, 0, "holdout"), positions(plan, 0, "train")
    assert len(held) == round(0.4 * len(everything)) > 0
    assert sorted(held + rest) == sorted(everything)
    assert rest == sorted(rest)
    assert positions(plan, 0, "val") == plan.data.clients[0].val.tolist()


def test_nothing_is_held_out_otherwise():
    plan = tiny_plan("fedavg")
    assert positions(plan, 0, "holdout") == []
    assert torch.equal(plan.part(0, "train").positions, plan.data.clients[0].train)


def test_where_a_batch_needs_two_samples_they_depend_on_each_other():
    """The norms of pFedGate's gates see the whole batch, so padding would show; without gates nothing does."""
    assert tiny_plan("pfedgate").mixes_samples
    assert not tiny_plan("pfedgate(fixed=true)").mixes_samples


def part(*chosen, shift=None, transform=None, **arrays):
    none = torch.tensor([], dtype=torch.long)
    x, y = (arrays.get(name, ARRAYS[name]) for name in ("x", "y"))
    return Part(Client("a", x, y, none, none, none, shift, transform), torch.tensor(chosen), "cpu")


def test_parts_are_joined_as_if_each_were_taken():
    """From one array, from arrays that share only inputs or only targets, and where clients change their inputs."""
    shifted = [part(3, shift=lambda x, positions, by=by: x + by) for by in (10, 20)]
    changed = [part(3, transform=lambda x, *_, by=by: x * by) for by in (10, 20)]
    for other in (part(3), part(3, x=-ARRAYS["x"]), part(3, y=-ARRAYS["y"]), shifted[0], changed[0]):
        for parts in ([part(2, 0), other], [other, part(2, 0)], [other], shifted, changed):
            expected = [torch.cat(some) for some in zip(*(one.take() for one in parts), strict=True)]
            assert all(map(torch.equal, join_parts(parts), expected))


def test_parts_of_one_array_are_copied_once(monkeypatch):
    taken = []
    monkeypatch.setattr(
        Client, "take", lambda self, at, draw=None: taken.append(at.tolist()) or (self.x[at], self.y[at])
    )
    join_parts([part(2, 0), part(3)])
    assert taken == [[2, 0, 3]]


def test_parts_are_split_into_batches_and_what_is_read_late_never_across_two_or_too_much(monkeypatch):
    parts = [part(2, 0, 1), part(3, x=-ARRAYS["x"])]
    batches = [(x.flatten().tolist(), y.tolist()) for x, y in split_parts(parts, 2)]
    assert batches == [([2, 0], [2, 0]), ([1, -3], [1, 3])]
    late = [parts[0], part(3, x=ArraySamples(-ARRAYS["x"].numpy()))]
    batches = [(x.flatten().tolist(), y.tolist()) for x, y in split_parts(late, 2)]
    assert batches == [([2, 0], [2, 0]), ([1], [1]), ([-3], [3])]
    monkeypatch.setattr(plan, "LATE_BYTES", 8)
    assert [len(y) for _, y in split_parts([part(2, 0, 1, x=late[1].client.x)], 4)] == [2, 1]


@pytest.mark.parametrize(("wide", "bytes", "samples"), [(3, 60, 5), (3, 8, 1), (0, 60, 15)])
def test_as_many_samples_are_read_at_once_as_there_is_room_for(wide, bytes, samples, monkeypatch):
    """Four bytes a number, and one sample at least."""
    monkeypatch.setattr(plan, "LATE_BYTES", bytes)
    assert late_size(part(0, x=torch.zeros(4, wide)).client) == samples
