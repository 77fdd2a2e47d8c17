"""A client that took no part in a run gets the model and the scores that an unseen client of the run has."""

import pytest
import torch

import idiolect
from idiolect.core.errors import DataError, InputError
from idiolect.data import Federation
from idiolect.testing import tiny_federation, tiny_model

QUICK = {"rounds": 2, "engine": "loop", "batch_size": 4, "lr": 0.1}
WHOLE = tiny_federation(5, unseen=1)


def run(method, data):
    return idiolect.run(method, data, model=tiny_model(), **QUICK)


@pytest.fixture(scope="module")
def result():
    return run("fedrep", tiny_federation())


@pytest.mark.parametrize(
    "method", ["fedavg", "ditto", "fedrep", "fedem", "pfedgate", "heterofl", "fedfac", "apple", "pfedhn", "local"]
)
def test_it_is_as_if_it_had_been_an_unseen_client_of_the_run(method):
    with_unseen, alone = run(method, WHOLE), run(method, tiny_federation())
    before = alone.store.rows()
    newcomer = alone.onboard(WHOLE.clients[5])
    at = with_unseen.store.facts.selected
    wanted = {row[3:7] for row in with_unseen.store.rows(cohort="unseen") if row[0] == at}
    assert {(s.point, s.split, s.metric, s.value) for s in newcomer.found} == wanted
    x = torch.randn(3, 4)
    assert torch.equal(newcomer.model()(x), with_unseen.model(5)(x))
    assert alone.store.rows() == before
    assert len(alone.plan.data) == 5


def test_its_model_is_a_file_that_stands_alone(result, tmp_path):
    newcomer = result.onboard(*WHOLE.clients[5].split("train"), name="dora")
    path, x = newcomer.save(tmp_path / "new" / "dora.safetensors"), torch.randn(3, 4)
    assert torch.equal(idiolect.load_model(path)(x), newcomer.model()(x))
    card = idiolect.read_card(path)
    assert (card["client"], {split for split, *_ in card["scores"]}) == ("dora", {"val", "test"})
    assert newcomer.scores().columns[:2] == ["point", "samples"]


def test_text_labels_and_columns_are_those_of_the_run():
    x, y = torch.randn(2, 20, 2), ["no", "yes"] * 10
    data = Federation.from_clients({"a": (x[0], y), "b": (x[1], y)})
    result = idiolect.run("fedavg", data, model="linear", rounds=1, engine="loop")
    assert result.onboard(x[0], ["yes", "no"] * 10).scores()["samples"].to_list()
    with pytest.raises(DataError, match="label 'maybe'"):
        result.onboard(x[0], ["yes", "maybe"] * 10)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((torch.randn(9, 3), torch.zeros(9).long()), r"a sample has the shape \[3\]"),
        ((torch.randn(9, 4), torch.randn(9)), "is no label; labels are whole numbers"),
        ((torch.randn(9, 4), torch.full((9,), 7)), "label 7|has the label 7"),
        (({"test": (torch.randn(9, 4), torch.zeros(9).long())},), "has no training samples|train"),
    ],
)
def test_other_samples_than_the_runs_are_refused(result, given, problem):
    with pytest.raises(InputError, match=problem):
        result.onboard(*given)


def test_names_and_networks_are_checked(result):
    x, y = WHOLE.clients[5].split("train")
    with pytest.raises(InputError, match="is called 'c1' already"):
        result.onboard(x, y, name="c1")
    with pytest.raises(InputError, match="no network 1; there are 1"):
        result.onboard(x, y, network=1)


def test_on_the_command_line(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("run", "--out", "r", "--clients", "3", "--rounds", "1", "--model", "linear", "--quiet", "--engine", "loop")
    (tmp_path / "ward.py").write_text(
        "import torch\n\ndef load():\n    return {'w': (torch.rand(9, 1, 8, 8), torch.arange(9) % 10)}\n"
        "\ndef pool():\n    return torch.rand(9, 1, 8, 8), torch.arange(9) % 10\n"
    )
    code, out, err = call("onboard", "r", "--data", "ward.py:load", "--out", "m")
    assert (code, err.count("\n") < 5) == (0, True)
    assert "adapted" in out
    assert idiolect.read_card(tmp_path / "m" / "0000-w.safetensors")["client"] == "w"
    assert "newcomer" in call("onboard", "r", "--data", "ward.py:pool")[1]
    code, _, err = call("onboard", "r", "--data", "ward.py:load", "--client", "v")
    assert code == 2
    assert "has no client 'v'; there is w" in err
    code, _, err = call("onboard", "r", "--data", "ward.py:load", "--out", "m")
    assert code == 2
    assert "is not empty" in err
