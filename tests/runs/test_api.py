"""Bring your own model, data, loss, metrics, weights and method."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

import idiolect
from idiolect import Federation, Metric, run
from idiolect.core.errors import InputError, ModelError, RunFolderError, UnknownNameError
from idiolect.runs.store import Store

DRAW = torch.Generator().manual_seed(0)


def clients(count: int = 3, size: int = 20, shape: tuple[int, ...] = (6,), classes: int = 3):
    return [
        (torch.randn(size, *shape, generator=DRAW), torch.randint(0, classes, (size,), generator=DRAW))
        for _ in range(count)
    ]


class Characters(nn.Module):
    """Next-character prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(9, 4), nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 9)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


TEXT = [tuple(torch.randint(0, 9, (12, 5), generator=DRAW) for _ in range(2)) for _ in range(3)]
IMAGES = [(torch.randn(12, 1, 6, 6, generator=DRAW), torch.randint(0, 2, (12, 6, 6), generator=DRAW)) for _ in range(3)]
NUMBERS = [(torch.randn(12, 6, generator=DRAW), torch.randn(12, 1, generator=DRAW)) for _ in range(3)]
OWN = {
    "batch norm": (nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), clients()),
    "layer norm": (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)), clients()),
    "group norm": (nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3)), clients()),
    "dropout": (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)), clients()),
    "characters": (Characters(), TEXT),
    "dense": (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)), IMAGES),
    "regression": (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), NUMBERS),
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedper"])
def test_any_module_and_data_work(kind, method):
    module, data = OWN[kind]
    result = run(method, data, model=module, rounds=2, batch_size=4)
    again = run(method, data, model=module, rounds=2, batch_size=4)
    assert result.complete
    assert result.metrics.equals(again.metrics)
    x = data[0][0][:2]
    assert result.model(0)(x).shape == module(x).shape


def test_data_may_be_arrays_datasets_mappings_or_given_splits():
    (x, y), *_ = clients()
    arrays = [(x.numpy(), y.numpy()), (x.numpy(), y.numpy())]
    datasets = {"north": TensorDataset(x, y), "south": TensorDataset(x, y)}
    splits = [{"train": (x, y), "val": (x[:4], y[:4]), "test": (x[4:8], y[4:8])}]
    for data in (arrays, datasets, splits):
        assert run("fedavg", data, model=nn.Linear(6, 3), rounds=1).complete
    assert run("fedavg", datasets, model=nn.Linear(6, 3), rounds=1).clients() == ["north", "south"]
    pooled = Federation.from_pool(x, y, "iid", clients=4)
    assert len(run("fedavg", pooled, model=nn.Linear(6, 3), rounds=1).clients()) == 4


def test_metrics_are_a_table_of_rounds_and_clients():
    table = run("fedavg", clients(), model=nn.Linear(6, 3), rounds=3, eval_every=2).metrics
    assert isinstance(table, pl.DataFrame)
    tests = table.filter(split="test", metric="accuracy")
    assert sorted(set(tests["round"])) == [2, 3]
    assert len(tests) == 2 * 3
    assert set(table.filter(point="train")["round"]) == {1, 2, 3}


def test_own_loss_and_metrics():
    def top2(outputs, y):
        return (outputs.topk(2, 1).indices == y[:, None]).any(1).float().mean()

    metrics = {"top2": top2, "error": Metric(lambda o, y: (o.argmax(1) != y).float().mean(), higher_is_better=False)}
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    result = run("fedavg", clients(), model=nn.Linear(6, 3), loss=loss, metrics=metrics, rounds=2)
    assert result.summary["metric"] == "top2"
    assert set(result.summary["top2"]) == {"selected", "last", "best"}
    assert "error" in set(result.metrics["metric"])


def test_initial_weights_from_a_state_dict_or_a_file(tmp_path):
    module = nn.Linear(6, 3)
    given = {name: torch.full_like(leaf, 0.25) for name, leaf in module.state_dict().items()}
    save_file(given, tmp_path / "w.safetensors")
    ends = [
        run("fedavg", clients(2), model=module, initial=initial, rounds=1, lr=1e-12).model(0).weight
        for initial in (given, tmp_path / "w.safetensors", str(tmp_path / "w.safetensors"))
    ]
    assert all(torch.allclose(end, torch.full_like(end, 0.25)) for end in ends)
    with pytest.raises(ModelError, match="do not fit the model"):
        run("fedavg", clients(2), model=nn.Linear(6, 2), initial=given, rounds=1)
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        run("fedavg", clients(2), model=module, initial=tmp_path / "none", rounds=1)


def test_rate_schedules_act():
    data = clients(2)
    flat, down = (run("fedavg", data, model=nn.Linear(6, 3).eval(), rounds=1) for _ in range(2))
    assert flat.summary["rounds_done"] == down.summary["rounds_done"]
    torch.manual_seed(0)
    module = nn.Linear(6, 3)
    ends = {
        name: run("fedavg", data, model=module, rounds=4, schedule=schedule).model(0, round=-1).weight
        for name, schedule in {"flat": "constant", "step": "step(at=[0.5], gamma=0.1)", "own": lambda r, n: 0.0}.items()
    }
    assert not torch.equal(ends["flat"], ends["step"])
    assert torch.equal(ends["own"], module.weight)


def test_a_run_folder_can_be_loaded_and_its_models_saved(tmp_path):
    result = run("fedper", "digits", clients=4, rounds=3, out=tmp_path / "r", save_models=True)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    wanted = "method options data partition seed rounds engine accuracy bytes_up bytes_down bytes_eval seconds"
    assert set(wanted.split()) | {"peak_memory_mb", "schema", "metric", "direction", "point"} <= set(summary)
    block = {"weighted", "mean", "std", "worst", "bottom_decile"}
    assert all(block <= set(summary["accuracy"][each]) for each in ("selected", "last", "best"))
    loaded = idiolect.load(tmp_path / "r")
    assert loaded.metrics.equals(pl.read_parquet(tmp_path / "r" / "metrics.parquet"))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(loaded.model(2)(x), result.model(2)(x))
    path = sorted((tmp_path / "r" / "models").iterdir())[2]
    assert torch.equal(idiolect.load_model(path, result.model(0))(x), result.model(2)(x))
    assert load_file(path).keys() == result.model(2).state_dict().keys()


def test_the_personal_model_is_that_of_the_selected_round(tmp_path):
    settings = {"clients": 5, "schedule": lambda round, rounds: 1.0 if round < 3 else -1.0}
    result = run("fedavg", "digits", rounds=6, **settings)
    chosen = result.summary["accuracy"]["selected"]["round"]
    assert chosen < 6
    again = run("fedavg", "digits", rounds=chosen, **settings)
    a, b = result.model(1).state_dict(), again.model(1, round=-1).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_folder_that_holds_a_run_is_never_overwritten(tmp_path):
    run("fedavg", "digits", clients=3, rounds=1, out=tmp_path / "r")
    before = (tmp_path / "r" / "summary.json").read_text()
    with pytest.raises(RunFolderError, match="already holds a run"):
        run("fedavg", "digits", clients=3, rounds=1, out=tmp_path / "r")
    assert (tmp_path / "r" / "summary.json").read_text() == before


def test_own_objects_must_be_given_again_to_resume(tmp_path):
    data, module = clients(), nn.Linear(6, 3)
    run("fedavg", data, model=module, rounds=1, out=tmp_path / "r")
    with pytest.raises(RunFolderError, match="own data, model"):
        idiolect.resume(tmp_path / "r")
    assert idiolect.resume(tmp_path / "r", data=data, model=module).complete
    with pytest.raises(RunFolderError, match=r"other settings \(clients: client-3 now, but not there; data: "):
        idiolect.resume(tmp_path / "r", data=clients(4), model=module)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"method": "fedprx"}, UnknownNameError, "Did you mean fedprox"),
        ({"data": "digitz"}, UnknownNameError, "Did you mean digits"),
        ({"partition": "dirichle:1"}, UnknownNameError, "Did you mean dirichlet"),
        ({"rouns": 3}, UnknownNameError, "Did you mean rounds"),
        ({"rounds": 0}, InputError, r"rounds must lie in \[1, inf\)"),
        ({"participation": 0.0}, InputError, "must lie in"),
        ({"clients": 5000}, InputError, "5000"),
        ({"split": (0.5, 0.5, 0.5)}, InputError, "sum to 1"),
        ({"optimizer": "adam", "momentum": 0.5}, UnknownNameError, "adam has no option 'momentum'"),
        ({"engine": "warp"}, UnknownNameError, "no engine"),
        ({"loss": "hinge"}, UnknownNameError, "no loss"),
        ({"head": "nose"}, ModelError, "no layer 'nose'"),
        ({"model": "cnn4"}, ModelError, "8"),
        ({"model": nn.Linear(64, 10)}, ModelError, "cannot take inputs|do not fit"),
    ],
)
def test_bad_input_is_explained_and_changes_nothing_on_disk(tmp_path, arguments, kind, message):
    with pytest.raises(kind, match=message):
        run(**({"data": "digits", "rounds": 1, "out": tmp_path / "r"} | arguments))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([(np.full((8, 6), np.nan, np.float32), np.zeros(8, int))], "NaN|not finite|infinite"),
        ([(torch.zeros(8, 6), torch.zeros(7, dtype=torch.long))], "8.*7|7.*8"),
        ([(torch.zeros(8, 6), torch.full((8,), -1))], "-1|negative"),
        ([(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))], "no|empty"),
        ([], "client"),
        ([(torch.zeros(8, 6), torch.zeros(8).long()), (torch.zeros(8, 5), torch.zeros(8).long())], "shape"),
    ],
)
def test_bad_data_is_explained(data, message):
    with pytest.raises(InputError, match=message):
        run("fedavg", data, model=nn.Linear(6, 3), rounds=1)


def test_users_random_numbers_and_threads_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.set_num_threads(2)
    run("fedavg", "digits", clients=3, rounds=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == 2


def test_the_metrics_are_read_once_for_table_and_summary(tmp_path, monkeypatch):
    result = idiolect.run("fedavg", "digits", clients=3, rounds=2, engine="loop", out=tmp_path / "r")
    reads, rows = [], Store.rows
    monkeypatch.setattr(Store, "rows", lambda store, **where: reads.append(where) or rows(store, **where))
    written = result.summary
    del result.summary
    result.write()
    assert reads == [{}]
    assert result.summary == written
    del result.summary
    assert result.summary == written
    assert idiolect.load(tmp_path / "r").summary == written
