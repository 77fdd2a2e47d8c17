"""What a plan says: who takes part in a round, and which data of a client are used for what."""

from dataclasses import replace

import pytest
import torch

from idiolect.testing import tiny_plan


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
