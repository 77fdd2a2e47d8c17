"""The example `forms_of_data`: in Python, and its functions on the command line."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "forms_of_data.py"
SHORT = ["--rounds", "1", "--engine", "loop", "--quiet"]


def test_it_runs_in_python(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--rounds", "1"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    forms = {line[:12].strip(): line[12:].split(maxsplit=2) for line in lines[1:]}
    assert forms.keys() - {"hub"} == {"frame", "folder", "images", "augmented", "two inputs", "sequences", "own labels"}
    assert forms["images"][2] == forms["own labels"][2] == "office 1, office 2, office 3"
    assert forms["frame"][2] == forms["folder"][2] == "clinic 2, clinic 10, Elm Street"
    assert "nan" not in str(forms)


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ("frame", "linear"),
        ("two_inputs", f"{EXAMPLE}:Two"),
        ("sentences", f"{EXAMPLE}:Reader"),
        ("augmented", "mlp(hidden=[8])"),
        ("own_labels", "mlp(hidden=[8])"),
    ],
)
def test_its_forms_run_on_the_command_line(data, model, call, tmp_path):
    out = tmp_path / "run"
    code, _, err = call("run", "fedper", "--data", f"{EXAMPLE}:{data}", "--model", model, *SHORT, "--out", out)
    assert code == 0, err
    assert call("export", out, "--position", "1", "--out", tmp_path / "model")[0] == 0


def test_its_folder_runs_on_the_command_line(call, tmp_path):
    example = runpy.run_path(str(EXAMPLE))
    (tmp_path / "clinics").mkdir()
    example["folder"](tmp_path / "clinics")
    options = ", ".join(f"{name}={value}" for name, value in example["COLUMNS"].items())
    (tmp_path / "run.yaml").write_text(f"data: csv('{tmp_path / 'clinics'}', {options})\nmodel: linear\nrounds: 1\n")
    code, _, err = call("run", tmp_path / "run.yaml", "--engine", "loop", "--quiet", "--out", tmp_path / "run")
    assert code == 0, err
    assert call("export", tmp_path / "run", "--client", "clinic 10", "--out", tmp_path / "model")[0] == 0
    assert "scanner" in (tmp_path / "model/preparation.json").read_text()


def test_its_images_run_on_the_command_line(call, tmp_path):
    runpy.run_path(str(EXAMPLE))["images"](tmp_path / "offices")
    data = f"folder('{tmp_path / 'offices'}')"
    code, _, err = call("run", "fedavg", "--data", data, "--model", "linear", *SHORT, "--out", tmp_path / "run")
    assert code == 0, err
