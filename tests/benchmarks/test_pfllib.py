"""The command line of the comparison with PFLlib, which is not here: what it refuses, and what it reads."""

import importlib
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pfllib.py"


@pytest.fixture
def pfllib(tmp_path):
    """The files by which a checkout of PFLlib is known."""
    for name in ("main.py", "flcore/servers/serverbase.py", "utils/data_utils.py"):
        path = tmp_path / "system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            'raise SystemExit("executed")\nparser.add_argument("-jr", "--join_ratio", type=float, default=1.0)\n'
            'parser.add_argument("-bnpc", "--batch_num_per_client", type=int, default=2)\n'
            'parser.add_argument("--other", default=os.sep)\n'
        )
    return tmp_path


@pytest.fixture
def script(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module(SCRIPT.stem)


@pytest.fixture
def call(script, monkeypatch, capsys):
    """Run the script: the code or the sentence that it exits with, and what it writes as an error."""

    def run(*options):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, options)])
        with pytest.raises(SystemExit) as left:
            script.main()
        return left.value.code, capsys.readouterr().err

    return run


def test_a_folder_that_is_not_pfllibs_is_refused(call, tmp_path):
    sentence = f"{tmp_path} is no checkout of PFLlib: there is no system/main.py in it; give --pfllib its folder"
    assert call("--pfllib", tmp_path) == (sentence, "")


def test_unknown_methods_are_refused_with_those_that_there_are(call, pfllib):
    code, said = call("--pfllib", pfllib, "--methods", "FedAvg, FedMAD")
    assert code == 2
    assert "there is no method 'FedMAD' to compare; there are FedAvg, Ditto, FedPer" in said


def test_the_options_of_its_command_line_are_read_and_not_executed(script, pfllib):
    assert script.read_defaults(pfllib / "system" / "main.py") == {
        "join_ratio": 1.0,
        "batch_num_per_client": 2,
        "other": None,
    }
