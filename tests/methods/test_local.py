"""Local training: every client keeps its whole model, and nothing is sent."""

import torch

from idiolect.testing import play_params, tiny_plan
from idiolect.testing.scalar import download_of, train_client


def test_nothing_crosses_the_wire_and_all_of_the_model_stays_parameters_and_statistics():
    plan = tiny_plan("local", norm=True)
    initial = plan.tasks[0].initial
    assert not any(download_of(plan).values())
    outcome = train_client(plan)
    assert outcome.upload is None or not any(outcome.upload.slots.values())
    assert set(outcome.state["private"]) == {*initial["params"], *initial["buffers"]}


def test_rounds_of_one_client_go_on_where_the_last_one_ended():
    """Whatever the others do: with one client alone it is the same."""
    together, alone = (play_params(tiny_plan("local", norm=True, clients=count))[0] for count in (5, 1))
    assert all(torch.equal(leaf, alone[name]) for name, leaf in together.items())
    short = play_params(tiny_plan("local", norm=True, rounds=1))[0]
    assert not torch.equal(together["0.weight"], short["0.weight"])
