"""Pictures of neurons and channels: what is looked at, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import InputError
from idiolect.report import feature_map_picture, layer_outputs, neuron_pictures, neuron_table


class Odd(nn.Module):
    """A user's own module with a functional call, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out, self.spare = nn.Conv2d(1, 3, 3), nn.Linear(12, 2), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(x)).flatten(1))


@pytest.fixture(scope="module")
def result():
    torch.manual_seed(0)
    clients = {name: (torch.randn(8, 1, 4, 4), torch.arange(8) % 2) for name in ("a/b", "$x$", "c")}
    return idiolect.run("local", clients, model=Odd(), rounds=1)


def test_outputs_are_those_of_the_clients_own_model(result) -> None:
    x = torch.randn(2, 1, 4, 4)
    model = result.model(result.plan.data.clients[1].name)
    torch.testing.assert_close(layer_outputs(result, 1, "conv", x), model.conv(x).detach())


def test_a_row_per_client_and_a_column_per_channel(result) -> None:
    table = neuron_table(result, "conv")
    x = result.plan.split(2, "train")[0]
    assert table.shape == (3, 3)
    torch.testing.assert_close(table[2], layer_outputs(result, 2, "conv", x).double().mean((0, 2, 3)))


def test_pictures_are_drawn(result, tmp_path: Path) -> None:
    pictures = neuron_pictures({"one": result, "$two$": result}, "conv", k=1)
    pictures.append(feature_map_picture({"one": result}, 0, "conv", torch.randn(1, 4, 4), {"personal": [0, 2]}))
    for picture in pictures:
        picture.save(tmp_path / f"{picture.name}.png")
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["feature-maps", "neuron-entropies", "neurons"]


def test_what_cannot_be_drawn_is_refused_in_a_sentence(result) -> None:
    sample = torch.randn(1, 4, 4)
    with pytest.raises(InputError, match=r"no layer 'cov' is here. Did you mean conv"):
        neuron_pictures({"one": result}, "cov")
    with pytest.raises(InputError, match="'spare' is not called"):
        neuron_pictures({"one": result}, "spare")
    with pytest.raises(InputError, match="'out' gives no maps"):
        feature_map_picture({"one": result}, 0, "out", sample, {"all": [0]})
    with pytest.raises(InputError, match="no channel 3; its channels are 0 to 2"):
        feature_map_picture({"one": result}, 0, "conv", sample, {"all": [3]})
