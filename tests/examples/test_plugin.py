"""The plug-in in examples/plugin: installed from its folder, all that it adds is known by name."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from idiolect.core.functions import Functions
from idiolect.core.plugins import load_plugins
from idiolect.core.registry import Registry

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
SCRIPT = """
import json, sys
import idiolect
from idiolect.data import load

board = idiolect.compare(
    "fedavg, half-step(part=1), half-step", "sensors(sites=3)", model="two-layers(hidden=4)",
    metrics="misses, accuracy", rounds=2, seeds=1, engine="loop", out="x",
)
idiolect.report.write_report(["x"], "report.html")
print(json.dumps({
    "direction": board.protocol["direction"],
    "clients": idiolect.load("x/half-step/seed-0").clients(),
    "network": type(idiolect.load("x/half-step/seed-0").model("site-2")).__name__,
    "partition": load("digits", partition="in-turn", clients=4).partition,
    "same": board["half-step(part=1.0)"].selected.mean == board["fedavg"].selected.mean,
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which the plug-in is installed."""
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("site")
    shutil.copytree(PLUGIN, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def run(site, folder, *words):
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_an_installed_plugin_adds_is_known_by_name(site, tmp_path):
    found = json.loads(run(site, tmp_path, "-c", SCRIPT).splitlines()[-1])
    assert found == {
        "direction": "lower",
        "clients": ["site-1", "site-2", "site-3"],
        "network": "TwoLayers",
        "partition": "in-turn",
        "same": True,
    }
    page = (tmp_path / "report.html").read_text()
    assert "half-step" in page
    assert "misses" in page


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Writes a package with entry points of a group."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(group, **points):
        info = tmp_path / "bad-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
        lines = (f"{name.replace('_', '-')} = {value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")

    return write


def test_a_plugin_that_cannot_be_imported_is_a_warning_and_no_more(plugins, tmp_path, caplog):
    (tmp_path / "bad_module.py").write_text("import no_such_module\n")
    (tmp_path / "bad_end.py").write_text("raise SystemExit('bye')\n")
    plugins("idiolect.tests", bad="bad_module:deal", end="bad_end", good="json:dumps")
    found = {}
    load_plugins("idiolect.tests", found.__setitem__)
    assert found == {"good": json.dumps}
    assert caplog.messages == [
        f"bad: its idiolect.tests 'bad' cannot be used: {tmp_path}/bad_module.py, line 1:"
        " ModuleNotFoundError: No module named 'no_such_module'",
        f"bad: its idiolect.tests 'end' cannot be used: {tmp_path}/bad_end.py, line 1: SystemExit: bye",
    ]


class Thing:
    """What the registry below knows."""


def test_a_plugin_whose_name_is_taken_or_which_is_of_another_kind_is_left_out(plugins, tmp_path, caplog):
    """Names are the same where they differ in hyphens or case only, so that none takes the place of ours."""
    (tmp_path / "things.py").write_text(f"from {__name__} import Thing\nclass Mine(Thing): pass\n")
    ours = Registry[Thing]("thing", Thing, group="idiolect.tests")
    ours.register("table", "desk")(Thing)
    plugins("idiolect.tests", ta_ble="things:Mine", Desk="things:Mine", wrong="json:dumps", good="things:Mine")
    assert ours.get("table") is ours.get("desk") is Thing
    assert list(ours) == ["good", "table"]
    assert [message.partition(" cannot")[0] for message in caplog.messages] == [
        f"bad: its idiolect.tests {name!r}" for name in ("Desk", "ta-ble", "wrong")
    ]


def test_a_function_whose_name_is_taken_or_which_cannot_be_called_is_left_out(plugins, caplog):
    plugins("idiolect.tests", ours="json:dumps", wrong="math:pi", good="json:dumps")
    functions = Functions("metric", {"ours": sum}, "idiolect.tests")
    assert functions.known == {"ours": sum, "good": json.dumps}
    assert [message.partition("used: ")[2] for message in caplog.messages] == [
        "there is a metric 'ours' already; give yours another name",
        "wrong is no metric: it is a float, but must be a function or a class",
    ]
