"""Code that a received folder names does not run unless it is trusted or known."""

import importlib
import importlib.util
import py_compile
import sys
from pathlib import Path

import pytest
import yaml

import idiolect
from idiolect.core import code as code_loading
from idiolect.core.errors import InputError, UntrustedCodeError
from idiolect.runs.store import Store

SETTINGS = {"clients": 3, "rounds": 2, "model": "linear", "engine": "loop", "seed": 0}
CODE = """
from dataclasses import dataclass
from pathlib import Path

from idiolect.engines.choice import LoopChoice
from idiolect.methods.fedavg import FedAvg
from idiolect.task.schedules import Schedule

Path("ran").touch()

@dataclass(frozen=True)
class Evil(FedAvg):
    pass

@dataclass(frozen=True)
class Pace(Schedule):
    pass

@dataclass(frozen=True)
class Motor(LoopChoice):
    pass
"""
NAMES = {"schedule": "Pace", "engine": "Motor", "method": "Evil"}
COMMANDS = """resume c
compare c/comparison.yaml --out d
compare -m local,fedavg --seeds 1 --out c
watch c --once
report c
advise c --no-race
tune c/comparison.yaml --trials 1"""
PLACES = ["method", "schedule", "engine", "data", "partition", "model", "optimizer", "transform"]
UNNEEDED = ("data", "partition", "model")
"""What a run is opened without; that its settings were edited is still seen."""


@pytest.fixture
def code(folder):
    """A file of code, which leaves a mark when it runs."""
    (folder / "x").mkdir()
    (folder / "x" / "evil.py").write_text(CODE)
    return folder / "x" / "evil.py"


@pytest.fixture
def received(folder, code):
    """A run that was made elsewhere, with code that nobody here has seen."""
    idiolect.run("fedavg", "digits", out=folder / "a", **SETTINGS)
    return folder / "a"


def name_code(folder, **settings):
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))


def ran():
    mark = Path("ran")
    left = mark.exists()
    mark.unlink(missing_ok=True)
    return left


@pytest.mark.parametrize("place", PLACES)
def test_code_in_a_received_folder_runs_by_no_command(call, received, place):
    name_code(received, **{place: f"x/evil.py:{NAMES.get(place, 'Evil')}"})
    for words in (
        ("report", "a", "--out", "r.html"), ("figures", "a", "--out", "f", "--format", "svg"),
        ("export", "a", "--position", "0"), ("resume", "a"), ("watch", "a", "--once"), ("advise", "a", "--no-race"),
        ("run", "a/config.yaml", "--out", "b"),
    ):  # fmt: skip
        code, _, err = call(*words)
        assert not ran(), words
        assert "Traceback" not in err
        if words[0] in ("report", "figures", "watch"):
            assert code == 0 or "was edited or damaged after the run began" in err, err
        elif words[0] in ("resume", "export"):
            assert code == 2
            assert "evil.py" in err
            assert "--trust" in err or (words[0] == "export" and place in UNNEEDED and "under other settings" in err)
            assert err.count("\n") == 1
    assert not Path("b").exists()
    with pytest.raises(InputError, match=r"trust=True|under other settings") as refused:
        idiolect.load(received)
    assert isinstance(refused.value, UntrustedCodeError) != (place in UNNEEDED)
    assert not ran()


def test_a_report_without_the_code_shows_scores_and_says_what_is_missing(received):
    name_code(received, method="x/evil.py:Evil")
    study = idiolect.report.write_report([received], "r.html")
    assert not ran()
    assert any("evil.py" in note for note in study.notes)
    assert "Client by client" in Path("r.html").read_text()


def test_trust_lets_it_run(call, received):
    name_code(received, schedule="x/evil.py:Pace")
    with pytest.raises(InputError, match="holds a run under other settings"):
        idiolect.load(received, trust=True)
    assert ran()
    code, _, err = call("run", "a/config.yaml", "--out", "b", "--trust")
    assert code == 0, err


def test_an_engine_in_a_received_store_does_not_run(call, received):
    store = Store(received / "state.sqlite")
    store.record({"engine": "x/evil.py:Motor"})
    store.close()
    status, _, err = call("resume", "a")
    assert not ran()
    assert (status, "--trust" in err) == (2, True)


def test_a_received_comparison_does_not_run_code(call, folder, code):
    idiolect.compare("local, fedavg", "digits", seeds=1, out="c", **{**SETTINGS, "seed": 0})
    path = folder / "c" / "comparison.yaml"
    known = path.read_text()
    for change in ({"methods": ["x/evil.py:Evil"]}, {"engine": "x/evil.py:Motor"}, {"baseline": "x/evil.py:Evil"},
                   {"rates": {"x/evil.py:Evil": 0.1}}):  # fmt: skip
        path.write_text(yaml.safe_dump({**yaml.safe_load(known), **change}))
        for words in COMMANDS.splitlines():
            _, _, err = call(*words.split())
            assert not ran(), (change, words)
            assert "Traceback" not in err


def test_code_that_the_user_named_is_known_from_then_on(call, folder, code, home):
    words = ("--clients", "3", "--rounds", "2", "--model", "linear", "--engine", "loop", "--out", "a")
    assert call("run", "x/evil.py:Evil", *words)[0] == 0
    assert ran()
    assert (home / "known-code").stat().st_mode & 0o777 == 0o600
    assert call("resume", "a")[0] == 0
    code.write_text(CODE + "x = 1\n")
    status, _, err = call("resume", "a")
    assert (status, "--trust" in err) == (2, True)


def test_a_list_of_known_code_that_others_may_write_is_not_believed(call, folder, code, home):
    assert call("run", "x/evil.py:Evil", "--clients", "3", "--rounds", "1", "--model", "linear", "--out", "a")[0] == 0
    (home / "known-code").chmod(0o666)
    assert call("resume", "a")[0] == 2


def test_code_of_the_command_line_runs_beside_a_file_of_settings(call, folder, code):
    Path("own.yaml").write_text(yaml.safe_dump({"clients": 3, "rounds": 1, "model": "linear"}))
    status, _, err = call("run", "own.yaml", "--method", "x/evil.py:Evil", "--out", "a")
    assert status == 0, err
    assert ran()


def test_code_in_a_file_of_settings_that_the_user_wrote_runs(call, folder, code):
    own = {"method": "x/evil.py:Evil", "clients": 3, "rounds": 1, "model": "linear"}
    Path("own.yaml").write_text(yaml.safe_dump(own))
    status, _, err = call("run", "own.yaml", "--out", "a")
    assert status == 0, err
    assert ran()


def test_a_compiled_file_beside_known_code_does_not_run(call, folder, code):
    """Python would take it for the code, if the times fit."""
    words = ("--clients", "3", "--rounds", "2", "--model", "linear", "--engine", "loop", "--out", "a")
    assert call("run", "x/evil.py:Evil", *words)[0] == 0
    other = folder / "other.py"
    other.write_text("from pathlib import Path\nPath('compiled ran').touch()\n" + CODE)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    moved = folder / "y" / "evil.py"
    moved.parent.mkdir()
    moved.write_text(CODE)
    py_compile.compile(str(other), importlib.util.cache_from_source(str(moved)), invalidation_mode=unchecked)
    name_code(folder / "a", method="y/evil.py:Evil")
    call("resume", "a")
    assert not Path("compiled ran").exists()


IMPORTS = """import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
"""
SMALL = ("--clients", "3", "--rounds", "1", "--model", "linear", "--engine", "loop", "--out", "a")


@pytest.fixture
def importing(code, monkeypatch):
    """A function that names code which imports a module beside it; neither it nor what Python's path was stays."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(module):
        code.write_text(f"{IMPORTS}import {module}\n{CODE}")

    yield write
    for module in [name for name in sys.modules if name.startswith("beside")]:
        del sys.modules[module]


def forget(module):
    """What a new process does not have."""
    code_loading._modules.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize("module", ["beside_a", "beside_b.inner"])
def test_what_known_code_imports_must_be_known_too(call, folder, code, importing, module):
    importing(module)
    file = code.parent / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("value = 1\n")
    assert call("run", "x/evil.py:Evil", *SMALL)[0] == 0
    forget(module.partition(".")[0])
    assert call("resume", "a")[0] == 0
    forget(module.partition(".")[0])
    file.write_text("from pathlib import Path\nPath('imported').touch()\n")
    status, _, err = call("resume", "a")
    assert (status, "--trust" in err, err.count("\n")) == (2, True, 1)
    assert f"names x/evil.py:Evil, which imports the code in {file}" in err
    assert not Path("imported").exists()


def test_a_compiled_file_beside_an_imported_one_does_not_run(call, folder, code, importing):
    importing("beside_c")
    file, other = code.parent / "beside_c.py", folder / "other.py"
    file.write_text("value = 1\n")
    assert call("run", "x/evil.py:Evil", *SMALL)[0] == 0
    forget("beside_c")
    other.write_text("from pathlib import Path\nPath('imported').touch()\n")
    compiled = importlib.util.cache_from_source(str(file))
    py_compile.compile(str(other), compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert call("resume", "a")[0] == 0
    forget("beside_c")
    file.unlink()
    Path(compiled).rename(file.with_suffix(".pyc"))  # which Python takes where there is no text
    assert call("resume", "a")[0] == 2
    assert not Path("imported").exists()


def test_settings_of_a_folder_import_no_module(folder, received, monkeypatch):
    (folder / "intruder.py").write_text("class Evil: pass")
    monkeypatch.syspath_prepend(folder)
    known = (received / "config.yaml").read_text()
    for place in (
        "method",
        "schedule",
        "engine",
        "data",
        "partition",
        "model",
        "loss",
        "metrics",
        "optimizer",
        "transform",
    ):
        for name in ("intruder:Evil", "intruder.Evil", "./intruder:Evil", "intruder(Evil)"):
            (received / "config.yaml").write_text(known)
            name_code(received, **{place: name})
            with pytest.raises(InputError):
                idiolect.load(received)
    assert "intruder" not in sys.modules


def test_code_that_fails_is_one_sentence(call, code):
    code.write_text("def (")
    status, _, err = call("run", "x/evil.py:Evil")
    assert (status, "Traceback" in err, "evil.py" in err) == (2, False, True)
