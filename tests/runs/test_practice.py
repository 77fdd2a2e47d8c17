"""What a practitioner is told, once, in plain words."""

import logging

import polars as pl
import pytest
import torch

import idiolect
from idiolect.core.errors import TrainingError
from idiolect.data import load


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, "idiolect")
    return lambda: [record.getMessage() for record in caplog.records]


def rows(size, **columns):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(size, generator=draw)
    table = {"ward": ["a", "b"] * (size // 2), "age": x.tolist(), "died": (x > 0).int().tolist()}
    return pl.DataFrame(table | columns)


def run(data, **settings):
    return idiolect.run(
        settings.pop("method", "fedavg"), data, **{"rounds": 3, "engine": "loop", "model": "linear"} | settings
    )


def test_divergence_is_said_once_with_the_column_that_is_not_scaled(said):
    frame = rows(40, income=[1e4 + at for at in range(40)], weight=[at / 40 for at in range(40)])
    run(load(frame, client="ward", target="died", predict="numbers"), lr=0.5, rounds=4, method="local")
    (line,) = [text for text in said() if "diverge" in text]
    assert "the input 'income' goes up to 1e+04, where others reach" in line
    assert "a smaller learning rate may help" in line
    assert "scale=federated" in line


def test_the_column_is_named_beside_other_inputs_too(said):
    income = torch.tensor([[1e4 + at, at / 20] for at in range(20)])
    site = {"scan": torch.randn(20, 1, 2, 2), "blood": income, "age": torch.rand(20, 1)}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tell = torch.nn.Linear(3, 1)

        def forward(self, scan, blood, age):
            return self.tell(torch.cat([blood, age], 1))

    run(load({"a": (site, torch.rand(20)), "b": (site, torch.rand(20))}), lr=0.5, rounds=4, method="local", model=Net)
    (line,) = [text for text in said() if "diverge" in text]
    assert "the input 'blood[0]' goes up to 1e+04, where others reach" in line


def test_what_is_scaled_and_learns_is_said_nothing_of(said):
    frame = rows(40, income=[1e4 + at for at in range(40)])
    run(load(frame, client="ward", target="died", scale="federated"), lr=0.5)
    assert said() == []


def test_a_first_round_of_unusable_uploads_ends_the_run_with_its_reason():
    frame = rows(40, income=[1e30] * 40, weight=[0.5] * 40)
    data = load(frame, client="ward", target="died", predict="numbers")
    with pytest.raises(TrainingError, match=r"can be used.*is not finite; a smaller learning rate.*the input 'income'"):
        run(data, lr=0.5)


def test_a_loss_that_is_no_number_from_the_start_is_not_blamed_on_the_learning_rate():
    def broken(outputs, y):
        return outputs.sum(1) * float("nan")

    with pytest.raises(TrainingError, match="the loss is not a number even before the first step"):
        run(load(rows(40), client="ward", target="died"), loss=broken)


def test_clients_of_one_class_and_without_validation_or_test_are_named_once(said):
    def site(labels):
        return torch.randn(len(labels), 2), torch.tensor(labels)

    clients = {"one": site([1] * 10), "tiny": site([0]), "both": site([0, 1] * 5)}
    run(clients, rounds=1)
    run(clients, rounds=1)
    assert said() == [
        "1 of 3 clients (one) has training samples of one class only, so that a model of their own learns to say"
        " nothing else",
        "1 of 3 clients (tiny) has no validation samples and no part in which round is selected",
        "1 of 3 clients (tiny) has no test samples and no part in the test scores",
    ]


def test_a_federation_without_validation_is_said(said):
    run(load(rows(40), client="ward", target="died", split=(0.8, 0, 0.2)), rounds=1)
    assert said() == [
        "no client has validation samples, so that no round can be selected by them and the last one is reported;"
        " give some,"
        " as in split=[0.6, 0.2, 0.2]"
    ]
