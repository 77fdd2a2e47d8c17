"""Frozen parameters in whole runs: in no slot, message or store, and in the personal models as the user gave them."""

import copy

import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import ModelError, RunFolderError
from idiolect.testing.tiny import tiny_federation, tiny_model

METHODS = ("fedavg", "ditto", "fedper", "fedlag(fedavg)")
ENGINES = ("loop", "workers(count=2)", "vector")
ROUNDS = 2


class Tied(nn.Module):
    """An encoder and a decoder of one weight, the decoder's bias frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.decode.weight = self.encode.weight
        self.decode.bias.requires_grad_(False)

    def forward(self, x):
        return self.out(self.decode(self.encode(x).relu()).relu())


def backbone() -> nn.Module:
    module = tiny_model(norm=True)
    module[:2].requires_grad_(False)
    return module


def head() -> nn.Module:
    module = tiny_model()
    module[-1].requires_grad_(False)
    return module


def run(module: nn.Module, method: str = "fedavg", engine: str = "loop", **settings):
    return idiolect.run(
        method, data=tiny_federation(), model=module, engine=engine, rounds=ROUNDS, batch_size=4, **settings
    )


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("build", [backbone, head, Tied])
def test_frozen_values_stay_in_the_module_and_nowhere_else(build, method, engine):
    module = build()
    before = copy.deepcopy(module.state_dict())
    frozen = {name for name, leaf in module.named_parameters() if not leaf.requires_grad}
    result = run(module, method, engine)

    stored = [result.store.server(), *filter(None, result.store.clients(range(5)).values())]
    assert not {name for slots in stored for leaves in slots.values() for name in leaves} & frozen
    for client in range(5):
        personal = result.model(client)
        after = personal.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in frozen)
        assert {name for name, leaf in personal.named_parameters() if not leaf.requires_grad} == frozen
        assert any(not torch.equal(after[name], before[name]) for name in after)
    assert all(torch.equal(leaf, before[name]) for name, leaf in module.state_dict().items())


def test_frozen_values_and_their_statistics_cost_no_bytes():
    result = run(backbone())
    trained = sum(leaf.numel() for leaf in backbone().parameters() if leaf.requires_grad)
    assert result.plan.tasks[0].parameters_trained == trained
    assert result.summary["bytes_down"] == ROUNDS * 5 * 4 * trained
    assert result.summary["bytes_up"] == ROUNDS * 5 * 4 * (trained + 1)  # and the number of samples


@pytest.mark.parametrize("method", METHODS)
def test_tied_weights_are_tied_in_personal_models(method):
    result = run(Tied(), method)
    for client in range(5):
        personal = result.model(client)
        assert personal.decode.weight is personal.encode.weight
    assert "decode.weight" not in result.store.server()["params"]


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("build", [backbone, head, Tied])
def test_engines_agree(build, method):
    module = build()
    one, other = (run(module, method, engine).model(0).state_dict() for engine in ("loop", "vector"))
    assert all(torch.allclose(leaf, other[name], atol=1e-5) for name, leaf in one.items())


def test_a_model_that_is_frozen_as_a_whole_is_refused():
    with pytest.raises(ModelError, match="all 6 are frozen"):
        run(tiny_model().requires_grad_(False))


def test_a_run_goes_on_with_the_same_frozen_values_only(tmp_path):
    run(backbone(), out=tmp_path / "run")
    other = backbone()
    with torch.no_grad():
        other[0].weight.add_(1)
    with pytest.raises(RunFolderError, match=r"weights: \w+ there, \w+ now"):
        idiolect.resume(tmp_path / "run", data=tiny_federation(), model=other)
