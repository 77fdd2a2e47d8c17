"""A personal model's file stands alone: another process opens it without run and data, for every method."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import idiolect
from idiolect.contract import methods
from idiolect.core.errors import InputError, ModelError, RunFolderError, UntrustedCodeError
from idiolect.data import Federation
from idiolect.engines.client_evaluation import predict
from idiolect.runs.model_card import CARD
from idiolect.runs.model_files import read_model, write_model
from idiolect.testing import tiny_federation, tiny_model

EXPRESSIONS = [
    *methods,
    "finetune(fedcp)",
    "fedlag(fedrod, warmup=0)",
    "flayer(feddbe)",
    "fedrod(hyper=true)",
    "pfedgate(split=structured)",
    "pfedgate(gate=client)",
    "heterofl(evaluate=global)",
]
OPEN = """
import json, sys, torch, idiolect
torch.set_num_threads(1)
inputs, files = torch.load(sys.argv[1]), json.load(open(sys.argv[2]))
torch.save({name: idiolect.load_model(path)(inputs) for name, path in files.items()}, sys.argv[3])
"""


def run(text, data=None, **changes):
    data = data or tiny_federation()
    several = {"models": [tiny_model(), tiny_model(width=3)], "model_of": [at % 2 for at in range(len(data))]}
    model = several if methods.build(text).needs.networks else {"model": tiny_model()}
    settings = {"rounds": 1, "engine": "loop", "batch_size": 4, "lr": 0.1, **model, **changes}
    return idiolect.run(text, data, **settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of every method, in a folder; one client never trains."""
    folder = tmp_path_factory.mktemp("runs")
    data = tiny_federation(unseen=1)
    return {text: run(text, data, eval_clients=3, out=folder / str(at)) for at, text in enumerate(EXPRESSIONS)}


@pytest.fixture(scope="module")
def files(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {text: result.save_models(folder / str(at)) for at, (text, result) in enumerate(runs.items())}


def test_every_methods_file_opens_in_another_process_and_predicts_as_the_engine_does(runs, files, tmp_path):
    x = torch.randn(9, 4)
    torch.save(x, tmp_path / "x")
    (tmp_path / "files.json").write_text(json.dumps({text: str(paths[0]) for text, paths in files.items()}))
    places = [str(tmp_path / name) for name in ("x", "files.json", "outputs")]
    path = {**os.environ, "PYTHONPATH": str(Path(idiolect.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", OPEN, *places], check=True, cwd=tmp_path, env=path)
    outputs = torch.load(tmp_path / "outputs")
    for text, result in runs.items():
        ctx = result.plan.context(0, 0, newcomer=False)
        assert torch.equal(outputs[text], predict(result.plan, ctx, result.personal_slots(0), x)), text


def test_the_folder_alone_gives_what_the_run_gave(runs):
    """Models of clients with many samples, with few, and of one that never trained; summary and scores."""
    x = torch.randn(3, 4)
    for text, result in runs.items():
        again = idiolect.load(result.folder)
        for client in (0, 3, 5):
            assert torch.equal(again.model(client)(x), result.model(client)(x)), (text, client)
        assert again.summary == result.summary, text
        assert again.scores().equals(result.scores()), text
        assert again.lacks_data, text
        again.store.close()


def test_no_file_holds_anything_of_the_data(runs, files):
    clients = tiny_federation(unseen=1).clients
    rows = [row.numpy().tobytes() for client in clients for row in client.x]
    rows += [client.y.numpy().tobytes() for client in clients]
    for text, result in runs.items():
        held = (result.folder / "state.sqlite").read_bytes()
        assert not any(row in held for row in rows), text
    for text, paths in files.items():
        for path in paths:
            held = path.read_bytes()
            assert not any(row in held for row in rows), text


def test_a_files_size_does_not_depend_on_how_much_data_there_is(files, tmp_path):
    x, y = torch.randn(5, 99, 4), torch.arange(495).reshape(5, 99) % 3
    many = Federation.from_clients({f"c{i}": (x[i], y[i]) for i in range(5)}, name="tiny", public=(x[0], y[0]))
    texts = [text for text in EXPRESSIONS if "values" in str(sorted(read_model(files[text][0])[0]))]
    assert len(texts) > 8
    for text in ("ditto", *texts):
        path = run(text, many).save_models(tmp_path / text)[0]
        (small, card), (large, other) = read_model(files[text][0]), read_model(path)
        assert {name: leaf.shape for name, leaf in small.items()} == {name: leaf.shape for name, leaf in large.items()}
        assert abs(len(card[CARD]) - len(other[CARD])) < 200


def test_where_the_network_is_all_a_file_holds_its_values_and_nothing_else(runs, files):
    """So its size is the network's, whatever the data were; the others are measured above."""
    for text, result in runs.items():
        values, _ = read_model(files[text][0])
        if not any(name.startswith("values.") for name in values):
            module = result.plan.task_of(0).module
            shapes = {name: leaf.shape for name, leaf in (*module.named_parameters(), *module.named_buffers())}
            assert {name: leaf.shape for name, leaf in values.items()} == shapes, text


def test_the_card_says_what_the_model_is(tmp_path):
    x, y = torch.randn(3, 20, 2), ["no", "yes"] * 10
    data = Federation.from_clients({"a": (x[0], y), "b": (x[1], y), "c": (x[2], y)}, feature_names=["age", "bmi"])
    result = idiolect.run("fedem(components=2)", data, model="mlp(hidden=[3])", rounds=2, engine="loop")
    card = idiolect.read_card(result.save_models(tmp_path)[1])
    assert (card["client"], card["method"], card["data"]["fingerprint"]) == (
        "b",
        "fedem(components=2)",
        data.fingerprint,
    )
    assert card["names"] == {"classes": ["no", "yes"], "features": ["age", "bmi"]}
    assert card["inputs"]["input_shape"] == [2]
    assert card["network"]["expression"] == "mlp(hidden=[3])"
    scores = {(split, metric): value for split, metric, value, _ in card["scores"]}
    (row,) = result.scores().filter(client="b").to_dicts()
    assert scores["test", "accuracy"] == row["accuracy"]


MINE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs: int, width: int = 3):
        super().__init__()
        self.first, self.head = nn.Linear(4, width), nn.Linear(width, outputs)
        self.first.requires_grad_(False)
        self.register_buffer("shift", torch.ones(width), persistent=False)

    def forward(self, x):
        return self.head(torch.relu(self.first(x)) + self.shift)
"""


def test_code_in_a_file_runs_only_where_it_is_known_or_trusted(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    text = f"{tmp_path / 'mine.py'}:Net(width=5)"
    result = run("fedrod", model=text)
    path, x = result.save_models(tmp_path / "models")[0], torch.randn(3, 4)
    with pytest.raises(UntrustedCodeError, match=r"names the code in .*mine.py"):
        idiolect.load_model(path)
    assert torch.equal(idiolect.load_model(path, trust=True)(x), result.model(0)(x))
    (tmp_path / "mine.py").write_text(MINE.replace("relu", "tanh"))
    with pytest.raises(ModelError, match=r"the code of the network .* is another one"):
        idiolect.load_model(path, trust=True)


class Kept(nn.Module):
    """A network that keeps its arguments as attributes."""

    def __init__(self, width, scale=1.0):
        super().__init__()
        self.width, self.scale = width, scale
        self.body, self.head = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU()), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.scale * self.body(x))


class Forgotten(Kept):
    """A network that does not."""

    def __init__(self, size):
        super().__init__(size)


@pytest.mark.parametrize("method", ["fedavg", "fedrod"])
def test_a_network_that_was_given_built_is_built_again_from_what_it_says_of_itself(method, tmp_path):
    x = torch.randn(3, 4)
    result = run(method, model=Kept(5, scale=2.0))
    path = result.save_models(tmp_path / "a")[0]
    assert idiolect.read_card(path)["network"]["layers"]["arguments"] == {"width": 5, "scale": 2.0}
    assert torch.equal(idiolect.load_model(path, trust=True)(x), result.model(0)(x))
    result = run(method, model=Forgotten(5))
    path = result.save_models(tmp_path / "b")[0]
    with pytest.raises(ModelError, match=r"Forgotten was built in Python .* load_model\(path, module\)"):
        idiolect.load_model(path, trust=True)
    assert torch.equal(idiolect.load_model(path, Forgotten(5))(x), result.model(0)(x))
    with pytest.raises(
        ModelError, match=r"do not fit the network Forgotten: 'body.0.bias' has the shape \[5\] in the file"
    ):
        idiolect.load_model(path, Forgotten(4))(x)


def test_tokens_sequences_and_several_inputs_open_as_well(tmp_path):
    tokens = torch.randint(0, 7, (2, 20, 5))
    data = {name: (tokens[at], torch.arange(20) % 2) for at, name in enumerate("ab")}
    result = idiolect.run("fedrod", data, model="fasttext(width=3)", rounds=1, engine="loop")
    path = result.save_models(tmp_path / "tokens")[0]
    assert torch.equal(idiolect.load_model(path)(tokens[0]), result.model(0)(tokens[0]))

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, image, age):
            return self.head(torch.cat([image, age[:, None]], 1))

    inputs = {"image": torch.randn(20, 2), "age": torch.rand(20)}
    result = idiolect.run("fedrod", {name: (inputs, torch.arange(20) % 2) for name in "ab"}, model=Two(), rounds=1)
    path = result.save_models(tmp_path / "two")[0]
    assert torch.equal(idiolect.load_model(path, Two())(**inputs), result.model(0)(**inputs))


def test_a_broken_card_is_one_sentence(files, tmp_path):
    weights, about = read_model(files["fedrod"][0])
    path = tmp_path / "m.safetensors"
    card = json.loads(about[CARD])
    wrong = [{"format": 9}, {"prediction": {"method": "ditto"}}, {"inputs": {}}, {"prediction": 3}, {"network": {}}]
    for change in wrong:
        write_model(path, weights, {CARD: json.dumps(card | change)})
        with pytest.raises(InputError, match=r"card|says otherwise|describes no model"):
            idiolect.load_model(path)
    for text in ("[", "{}", "3"):
        write_model(path, weights, {CARD: text})
        with pytest.raises(RunFolderError, match=r"the card in .* cannot be read"):
            idiolect.load_model(path)
    write_model(path, weights, {})
    with pytest.raises(InputError, match="no card that says of which network"):
        idiolect.read_card(path)


def test_layers_that_a_card_names_are_pytorchs_own(files, tmp_path):
    weights, about = read_model(files["fedavg"][0])
    card = json.loads(about[CARD])
    for name in ("Module.__subclasses__", "modules", "init", "os:system", "Parameter"):
        card["network"]["layers"] = {"class": name, "arguments": {}}
        write_model(tmp_path / "m.safetensors", weights, {CARD: json.dumps(card)})
        with pytest.raises(InputError):
            idiolect.load_model(Path(tmp_path / "m.safetensors"))


@pytest.mark.parametrize(
    "network",
    [
        {"expression": "mlp(hidden=[3000000, 3000000])"},
        {"layers": {"class": "Linear", "arguments": {"in_features": 9**7, "out_features": 9**7}}},
    ],
)
def test_a_card_that_asks_for_more_memory_than_its_values_need_is_refused(network, files, tmp_path):
    weights, about = read_model(files["fedavg"][0])
    card = json.loads(about[CARD])
    card["network"] = {**{k: v for k, v in card["network"].items() if k not in ("layers", "expression")}, **network}
    write_model(tmp_path / "m.safetensors", weights, {CARD: json.dumps(card)})
    with pytest.raises(InputError, match="too many for the values"):
        idiolect.load_model(tmp_path / "m.safetensors")


def test_a_folder_alone_has_scores_and_models_where_they_were_kept(tmp_path):
    result = run("finetune(ditto)", save_models=True, out=tmp_path / "kept")
    record, x = idiolect.read(tmp_path / "kept"), torch.randn(3, 4)
    assert torch.equal(record.model("c2")(x), result.model(2)(x))
    assert record.summary["accuracy"] == result.summary["accuracy"]
    with pytest.raises(InputError, match="no client is called 'c9'"):
        record.model("c9")
    run("fedavg", out=tmp_path / "r")
    with pytest.raises(RunFolderError, match="keeps no models: it was run without save_models=true"):
        idiolect.read(tmp_path / "r").model(0)
