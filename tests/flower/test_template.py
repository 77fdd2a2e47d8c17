"""`idiolect deploy init` writes an app whose settings are read and whose two functions work."""

import tomllib

import pytest

from idiolect.cli import main
from idiolect.core.errors import InputError
from idiolect.flower.personal import load_project
from idiolect.flower.settings import read_settings
from idiolect.flower.template import write_app


def settings_of(app):
    return tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_a_new_app_works_as_it_is(tmp_path):
    pytest.importorskip("flwr.app", reason="Flower is not installed")
    write_app(tmp_path / "My Federation!")
    config, deployment = read_settings(settings_of(tmp_path / "My Federation!"))
    assert (deployment.federation, config.clients, config.method) == ("my-federation", 3, "ditto")
    project = load_project(tmp_path / "My Federation!")
    plan = project.build_plan(config, project.load_federation(config, deployment, 1))
    assert len(plan.data.clients[1]) > 10
    assert plan.data.classes == 10


def test_it_is_told_which_files_to_edit(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["deploy", "init", str(tmp_path / "new")])
    assert ended.value.code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "README.md",
        "federation.py",
        "pyproject.toml",
    ]
    assert "federation.py" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("x = 1")
    with pytest.raises(SystemExit) as ended:
        main(["deploy", "init", str(tmp_path)])
    assert ended.value.code == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_what_is_not_an_app_is_named(tmp_path):
    with pytest.raises(InputError, match=r"is not a Flower app: its pyproject\.toml names no clientapp"):
        load_project(tmp_path)
