"""One client's part of a round, and the model that it has right after it."""

import pytest
import torch

from idiolect.engines.client_round import train_model
from idiolect.testing import tiny_plan
from idiolect.testing.scalar import download_of, train_client


@pytest.mark.parametrize(("method", "slot"), [("fedavg", "params"), ("ditto", "ditto.own")])
def test_the_model_right_after_training_is_the_trained_one_of_a_newcomer_too(method, slot):
    plan = tiny_plan(method)
    outcome = train_client(plan)
    trained = {**outcome.upload.slots, **outcome.state}[slot]
    model = train_model(plan, 0, 0, None, download_of(plan))
    assert all(torch.equal(leaf, model["params"][name]) for name, leaf in trained.items())
