"""What becomes of an optimiser's state between rounds: made anew, or kept by the client."""

import pytest
import torch

import idiolect
from idiolect.core.errors import OptionError
from idiolect.engines import engines
from idiolect.task.optimizers import SGD, Adam
from idiolect.testing import play, tiny_plan
from idiolect.testing.tiny import require_equal


def run_alone(state, rounds, epochs):
    """FedAvg with one client: its rounds are the epochs of one long training."""
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 2)
    start = {name: leaf.detach().clone() for name, leaf in model.state_dict().items()}
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))
    clients = {"only": {"train": (x[:8], y[:8]), "val": (x[8:10], y[8:10]), "test": (x[10:], y[10:])}}
    settings = {"lr": 0.3, "momentum": 0.9, "batch_size": 8, "engine": "loop", "optimizer_state": state}
    result = idiolect.run("fedavg", clients, model=model, rounds=rounds, local_epochs=epochs, **settings)
    return start, (x[:8], y[:8]), result.personal_slots(0, -1)["params"]


def descend(start, batch, steps, restart_every):
    """PyTorch's own optimiser on the same full batches."""
    model = torch.nn.Linear(3, 2)
    model.load_state_dict(start)
    for step in range(steps):
        if step % restart_every == 0:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize(("state", "restart_every"), [("keep", 6), ("reset", 2)])
def test_rounds_of_one_client_are_pytorchs_training(state, restart_every):
    start, batch, after = run_alone(state, rounds=3, epochs=2)
    for name, leaf in descend(start, batch, 6, restart_every).items():
        torch.testing.assert_close(after[name], leaf.detach(), rtol=1e-5, atol=1e-6)


def test_moments_stay_on_the_client_and_out_of_messages():
    kept, fresh = (tiny_plan("ditto", optimizer=Adam(), optimizer_state=state) for state in ("keep", "reset"))
    a, b = play(kept), play(fresh)
    names = {f"{slot}:{key}" for slot in ("params", "ditto.own") for key in ("first", "second", "count")}
    assert a.clients[0].keys() - b.clients[0].keys() == names
    assert a.cost == b.cost


def test_an_absent_client_keeps_what_it_had():
    plan = tiny_plan("fedavg", optimizer=Adam(), optimizer_state="keep", participation=0.4, rounds=4)
    took_part = [i for round in range(4) for i in plan.participants(round)]
    for i, state in play(plan).clients.items():
        steps = 0 if state is None else float(state["params:count"]["0.weight"])
        per_round = 2 * -(-plan.part(i, "train").size // 4)
        assert steps == took_part.count(i) * per_round


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("method", ["fedavg", "fedrep(head_epochs=1)", "lgfedavg(layers=1, pretrain=1)", "pfedgate"])
@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()], ids=["momentum", "adam"])
def test_engines_agree_when_some_clients_were_absent(method, optimizer):
    plan = tiny_plan(method, optimizer=optimizer, optimizer_state="keep", participation=0.6, rounds=4, lr=0.02)
    reference = play(plan)
    require_equal(reference, play(plan, engines.build("workers(count=2)").make), "workers")
    require_equal(reference, play(plan, engines.build("vector(chunk=3, count=1)").make), "vector", 2e-3)


def test_a_resumed_run_goes_on_with_it(tmp_path):
    settings = {"clients": 4, "momentum": 0.9, "optimizer_state": "keep", "engine": "loop", "seed": 5}
    whole = idiolect.run("fedavg", "digits", rounds=4, **settings)

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.round == 1:
            raise Stopped

    with pytest.raises(Stopped):
        idiolect.run("fedavg", "digits", rounds=4, out=tmp_path / "run", watch=stop, **settings)
    resumed = idiolect.resume(tmp_path / "run")
    assert resumed.metrics.equals(whole.metrics)


def test_other_values_are_refused():
    with pytest.raises(OptionError, match="reset, keep"):
        idiolect.run("fedavg", "digits", optimizer_state="forget")
