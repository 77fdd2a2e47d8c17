"""Personal models as files: they predict as the run's own do, and the card says what they are."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import idiolect
from idiolect.cli import main
from idiolect.core.errors import InputError, MissingExtraError, ModelError, RunFolderError
from idiolect.runs import export as module
from idiolect.runs.export import export, personal_of


@pytest.fixture(scope="module", params=["ditto", "pfedgate"])
def result(request):
    return idiolect.run(request.param, "digits", clients=3, rounds=2, engine="loop", lr=0.1)


@pytest.mark.parametrize("method", ["ditto", "fedem"])
def test_a_torchscript_model_predicts_as_the_runs_own(method, tmp_path):
    result = idiolect.run(method, "digits", clients=3, rounds=1, engine="loop")
    export(personal_of(result, 1), tmp_path / "out", ["torchscript"])
    x = result.plan.data.clients[1].split("test")[0][:5]
    outputs = torch.jit.load(tmp_path / "out" / "model.pt")(x)
    assert torch.allclose(outputs, result.model(1)(x), atol=1e-6)


def test_a_model_that_decides_by_batch_is_not_written_wrongly(tmp_path):
    result = idiolect.run("pfedgate", "digits", clients=3, rounds=1, engine="loop")
    with pytest.raises(ModelError, match="which TorchScript cannot express; choose safetensors"):
        export(personal_of(result, 1), tmp_path / "out", ["torchscript"])


def test_an_onnx_model_predicts_as_the_runs_own(tmp_path):
    pytest.importorskip("onnxscript", reason="the packages that write ONNX are not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    result = idiolect.run("ditto", "digits", clients=3, rounds=1, engine="loop")
    export(personal_of(result, 1), tmp_path / "out", ["onnx"])
    x = result.plan.data.clients[1].split("test")[0][:5]
    (outputs,) = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx")).run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(outputs), result.model(1)(x), atol=1e-5)


def test_safetensors_hold_the_weights_under_the_networks_names(tmp_path):
    result = idiolect.run("fedavg", "digits", clients=3, rounds=1, engine="loop")
    export(personal_of(result, 1), tmp_path / "out")
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert held.keys() == result.model(1).state_dict().keys()
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata()["config_hash"] == result.config.hash


def test_the_card_says_method_rounds_scores_and_settings(result):
    text = personal_of(result, 1).card()
    summary = result.summary["accuracy"]["selected"]
    assert f"- method: {result.config.method}" in text
    assert f"- round: {summary['round']} (selected by validation)" in text
    assert "- rounds: 2 of 2" in text
    assert f"- config hash: {result.config.hash}" in text
    (row,) = result.metrics.filter(
        client=1, split="test", metric="accuracy", round=summary["round"], point="view"
    ).rows()
    assert f"| test | accuracy | {row[6]:.4f} | {row[7]} |" in text
    assert ("at most 128 inputs at a time" in text) == (result.config.method == "pfedgate")


def test_the_last_round_may_be_asked_for(result):
    assert "- round: 2 (last)" in personal_of(result, 1, last=True).card()


def test_on_the_command_line(tmp_path, capsys):
    run = tmp_path / "run"
    idiolect.run("ditto", "digits", clients=3, rounds=1, engine="loop", out=run)
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--client", "1", "--out", str(tmp_path / "a"), "--format", "safetensors,torchscript"])
    assert ended.value.code == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"model.safetensors", "model.pt", "card.md"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{run}"], "which client's model? Give its number or name, as in --client 0"),
        (["{run}", "-c", "9"], "there is no client 9"),
        (["{run}", "-c", "0", "-f", "onx"], "there is no format 'onx'. Did you mean onnx?"),
        (["{run}", "-c", "0", "--out", "{run}"], "exists and is not empty; choose another folder for the model"),
        (["{empty}", "-c", "0"], "holds neither a run nor a client's model"),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(arguments, problem, tmp_path, capsys):
    run, empty = tmp_path / "run", tmp_path / "empty"
    empty.mkdir()
    idiolect.run("fedavg", "digits", clients=3, rounds=1, engine="loop", out=run)
    with pytest.raises(SystemExit) as ended:
        main(["export", *(each.format(run=run, empty=empty) for each in arguments)])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run"]


def test_missing_packages_are_named(result, tmp_path, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install onnx onnxscript"):
        export(personal_of(result, 0), tmp_path / "out", ["onnx"])
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_left_alone(result, tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RunFolderError, match="is not empty"):
        export(personal_of(result, 0), tmp_path)
    with pytest.raises(InputError, match="there is no client 'nobody'"):
        personal_of(result, "nobody")
