"""How alike clients' models see the same samples: which models, which samples, and what cannot be compared."""

from itertools import combinations

import pytest
import torch
from torch import nn

import idiolect
from idiolect.analysis import cka
from idiolect.core.errors import InputError, OptionError
from idiolect.engines.client_round import train
from idiolect.engines.slots import first_server
from idiolect.report import layer_similarity, read_study
from idiolect.report.figures.similarity import pick_test_samples, similarity_picture

SETTINGS = {"clients": 4, "rounds": 3, "model": "mlp(hidden=[6])", "engine": "loop", "partition": "dirichlet:0.2"}


@pytest.fixture(scope="module")
def result():
    return idiolect.run("flayer", **SETTINGS)


def pairwise(models, x):
    """The mean CKA over pairs, written out: of the layers fc1 and fc2 that run one after another."""
    outputs = {"fc1": [], "fc2": []}
    for params in models:
        hidden = x.flatten(1) @ params["fc1.weight"].T + params["fc1.bias"]
        outputs["fc1"].append(hidden)
        outputs["fc2"].append(torch.relu(hidden) @ params["fc2.weight"].T + params["fc2.bias"])
    return {
        unit: pytest.approx(sum(float(cka(a, b)) for a, b in combinations(found, 2)) / 6, abs=1e-6)
        for unit, found in outputs.items()
    }


def test_it_is_the_mean_over_all_pairs_of_clients_on_the_same_test_samples(result):
    x = torch.cat([result.plan.split(client, "test")[0][:5] for client in range(4)])
    models = [result.personal_slots(client)["params"] for client in range(4)]
    assert layer_similarity(result, samples=20) == pairwise(models, x)
    assert layer_similarity(result, samples=20)["fc2"] < 1


def uploads(plan, round, server, states):
    """What clients upload in a round; FLAYER's is the whole model that each has right after training."""
    download = plan.method.download(plan.server(round), server, range(4))
    return [train(plan, i, round, states[i], download.of(i)).upload.slots["params"] for i in range(4)]


def test_first_models_are_those_after_the_first_rounds_training(result):
    plan = result.plan
    trained = uploads(plan, 0, first_server(plan.server(0)), dict.fromkeys(range(4)))
    assert layer_similarity(result, "first") == pairwise(trained, pick_test_samples(plan, range(4), 240))


def test_trained_models_start_from_the_selected_round():
    result = idiolect.run("flayer", **{**SETTINGS, "rounds": 12}, lr=2.0)
    plan, store, at = result.plan, result.store, result.store.facts.selected
    assert at < 11
    trained = uploads(plan, at, store.server(at), store.clients(range(4), at))
    assert layer_similarity(result, "trained") == pairwise(trained, pick_test_samples(plan, range(4), 240))


def test_one_model_for_all_is_alike_until_clients_train_it():
    result = idiolect.run("fedavg", **SETTINGS)
    assert list(layer_similarity(result).values()) == pytest.approx([1, 1])
    assert all(value < 1 - 1e-6 for value in layer_similarity(result, "trained").values())


def test_it_changes_nothing_that_is_kept(result):
    before = {i: result.personal_slots(i)["params"]["fc1.weight"].clone() for i in range(4)}
    drawn = torch.random.get_rng_state()
    layer_similarity(result, "first")
    layer_similarity(result, "trained")
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(torch.equal(result.personal_slots(i)["params"]["fc1.weight"], leaf) for i, leaf in before.items())


def test_some_clients_by_name_or_position(result):
    names = result.clients()
    assert layer_similarity(result, clients=names[:2]) == layer_similarity(result, clients=[0, 1])


class Tied(nn.Module):
    """Its first layer is called, its last only used."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(64, 5), nn.Linear(5, 10)

    def forward(self, x):
        return nn.functional.linear(torch.relu(self.body(x.flatten(1))), self.out.weight, self.out.bias)


def test_a_layer_that_is_never_called_is_left_out():
    own = idiolect.run("flayer", **{**SETTINGS, "model": Tied()})
    for models in ("personal", "first", "trained"):
        assert set(layer_similarity(own, models)) == {"body"}


@pytest.mark.parametrize("method", ["pfedgate", "fedem", "flayer(ditto)", "fedfac", "fedlag(flayer)"])
def test_methods_with_other_models_and_setup_rounds(method):
    own = idiolect.run(method, **SETTINGS)
    for models in ("personal", "first", "trained"):
        found = layer_similarity(own, models)
        assert set(found) == {"fc1", "fc2"}
        assert all(0 <= value <= 1 for value in found.values())


def test_what_cannot_be_compared_is_said_in_a_sentence(result):
    with pytest.raises(OptionError, match="models='last' is not allowed; choose personal, first, trained"):
        layer_similarity(result, "last")
    with pytest.raises(InputError, match="there is 1 client to compare"):
        layer_similarity(result, clients=[0])
    bare = idiolect.run("fedavg", **SETTINGS, split=(0.8, 0.2, 0.0), select="last")
    with pytest.raises(InputError, match="none of the clients has test samples"):
        layer_similarity(bare)


def test_the_picture_has_a_line_for_every_method(originals, tmp_path, call):
    picture = similarity_picture(read_study([originals]))
    assert "right after local training" in picture.caption
    code, out, _ = call("figures", originals, "--out", tmp_path, "--format", "svg", "--local-models")
    assert code == 0, out
    drawn = (tmp_path / "models-local-cka.svg").read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("local", "fedavg", "ditto", "first round", "selected round"))
