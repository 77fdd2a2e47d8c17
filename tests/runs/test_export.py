"""Personal models as files: they predict as the run's own do, and the card says what they are."""

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

import idiolect
from idiolect.cli import main
from idiolect.core.errors import InputError, MissingExtraError, ModelError, RunFolderError
from idiolect.runs import export as module
from idiolect.runs.export import export, personal_of, shared_of


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
    with pytest.raises(ModelError, match=r"as TorchScript .pfedgate decides anew .*; choose safetensors"):
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
    assert f"- round: {summary['round']} (selected: sample-weighted validation)" in text
    assert "- rounds: 2 of 2" in text
    assert f"- config hash: {result.config.hash}" in text
    (row,) = result.metrics.filter(
        client=1, split="test", metric="accuracy", round=summary["round"], point="personal"
    ).rows()
    assert f"| test | accuracy | {row[6]:.4f} | {row[7]} |" in text
    assert ("at most 128 inputs at a time" in text) == (result.config.method == "pfedgate")


def test_the_last_round_may_be_asked_for(result):
    assert "- round: 2 (last)" in personal_of(result, 1, last=True).card()


def test_on_the_command_line(tmp_path, capsys):
    run = tmp_path / "run"
    idiolect.run("ditto", "digits", clients=3, rounds=1, engine="loop", out=run)
    with pytest.raises(SystemExit) as ended:
        main(
            ["export", str(run), "--position", "1", "--out", str(tmp_path / "a"), "--format", "safetensors,torchscript"]
        )
    assert ended.value.code == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"model.safetensors", "model.pt", "card.md"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{run}"], "which model? Give a client's name, as in --client ward-3, or its position, --position 0"),
        (["{run}", "--global", "--position", "0"], "or --global for the shared model, or --all; one of them"),
        (["{run}", "-c", "9"], "no client is called '9'"),
        (["{run}", "--position", "0", "-f", "onx"], "there is no format 'onx'. Did you mean onnx?"),
        (
            ["{run}", "--position", "0", "--out", "{run}"],
            "exists and is not empty; choose another folder",
        ),
        (["{empty}", "--position", "0"], "holds neither a run nor a client's model"),
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
    with pytest.raises(InputError, match="no client is called 'nobody'"):
        personal_of(result, "nobody")


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), SafetensorError("I/O error")])
def test_a_folder_that_cannot_be_written_is_one_sentence(result, tmp_path, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr("idiolect.runs.model_files.save_file", refuse)
    with pytest.raises(RunFolderError, match="cannot be written"):
        export(personal_of(result, 0), tmp_path / "out")
    with pytest.raises(RunFolderError, match="cannot be written"):
        result.save_models(tmp_path / "models")


def test_a_model_is_there_whole_or_not_at_all(result, tmp_path, monkeypatch):
    """What an export that was killed leaves is in nobody's way, and is gone after the next one."""

    def fail(personal, path, networks):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_weights", fail)
        with pytest.raises(KeyboardInterrupt):
            export(personal_of(result, 0), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".model.part").mkdir()
    (tmp_path / ".model.part" / "model.safetensors").write_bytes(b"half")
    export(personal_of(result, 0), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_shared_model_is_exported_with_its_scores_over_all_clients(tmp_path):
    """Also where a client is called global: that one's personal model has a folder of its own."""
    x, y = torch.randn(3, 20, 4), torch.arange(60).reshape(3, 20) % 2
    data = {name: (x[i], y[i]) for i, name in enumerate(("a", "b", "global"))}
    result = idiolect.run("ditto", data, rounds=2, engine="loop", model="mlp(hidden=[4])", eval_global=True, lr=0.1)
    for model in (shared_of(result), personal_of(result, "global")):
        export(model, tmp_path / model.folder_name, ["safetensors", "torchscript"])
    shared = torch.jit.load(tmp_path / "shared-model" / "model.pt")(x[0])
    assert torch.allclose(shared, result.global_model()(x[0]), atol=1e-6)
    own = torch.jit.load(tmp_path / "model-global" / "model.pt")(x[0])
    assert not torch.allclose(shared, own, atol=1e-3)
    card = (tmp_path / "shared-model" / "card.md").read_text()
    weighted = result.summary["global"]["selected"]["weighted"]
    assert card.startswith("# Shared model\n")
    assert f"| test | accuracy | {weighted:.4f}".rstrip("0") in card


def test_without_recorded_scores_the_shared_models_card_has_none():
    result = idiolect.run("fedavg", "digits", clients=3, rounds=1, engine="loop")
    assert "Scores" not in shared_of(result).card()


def test_a_method_without_a_whole_shared_model_has_none_to_export():
    result = idiolect.run("fedper", "digits", clients=3, rounds=1, engine="loop", eval_global=True)
    assert "global" not in result.summary
    with pytest.raises(InputError, match="no shared model to take out of the run: fedper has none here"):
        result.global_model()


def test_the_shared_model_is_exported_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = ["run", "--clients", "3", "--rounds", "1", "--engine", "loop", "--eval-global", "--out", "r"]
    for command in (run, ["export", "r", "--global"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    assert "the shared model itself" in capsys.readouterr().out
    assert (tmp_path / "shared-model" / "model.safetensors").is_file()
