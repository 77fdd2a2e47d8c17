"""The picture of feature values."""

import pytest
import torch
from torch import nn

import idiolect
from idiolect.analysis import feature_values
from idiolect.report.figures.features import client_features, feature_pictures


def test_values_are_those_of_the_clients_own_model_on_its_own_samples(study):
    with study.result("lgmix") as result:
        found = client_features(result)
        assert 2 <= len(found) <= 6
        client = next(iter(found))
        inside = []
        model = result.model(client)
        *_, last = [module for module in model.modules() if isinstance(module, nn.Linear)]
        hook = last.register_forward_pre_hook(lambda _, inputs: inside.append(inputs[0]))
        with torch.no_grad():
            model(result.plan.split(client, "train")[0][:240])
        hook.remove()
        wanted = feature_values(inside[0])
        assert found[client].active == pytest.approx(wanted.active)
        assert found[client].percentiles == pytest.approx(wanted.percentiles, rel=1e-5)


def test_methods_that_predict_their_own_way_are_left_out(study, tmp_path):
    with study.result("pfedgate") as result:
        assert client_features(result) == {}
    (picture,) = feature_pictures(study)
    picture.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


class Functional(nn.Module):
    """A network that never calls its last layer as a module."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        return nn.functional.linear(torch.relu(self.first(x.flatten(1))), self.last.weight, self.last.bias)


def test_a_network_whose_last_layer_cannot_be_watched_has_no_picture():
    result = idiolect.run("local", "digits", model=Functional(), clients=3, rounds=1)
    assert client_features(result) == {}
