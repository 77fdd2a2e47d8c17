"""The command line of the comparison with PFLlib, which is not here: what it refuses, and what it reads."""

import subprocess
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


def call(*options):
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_folder_that_is_not_pfllibs_is_refused(tmp_path):
    code, said = call("--pfllib", tmp_path)
    assert code == 1
    assert said == (
        f"{tmp_path} is no checkout of PFLlib: there is no system/main.py in it; give --pfllib its folder\n"
    )


def test_unknown_methods_are_refused_with_those_that_there_are(pfllib):
    code, said = call("--pfllib", pfllib, "--methods", "FedAvg, FedMAD")
    assert code == 2
    assert "there is no method 'FedMAD' to compare; there are FedAvg, Ditto, FedPer" in said


def test_the_options_of_its_command_line_are_read_and_not_executed(pfllib, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from pfllib import read_defaults

    assert read_defaults(pfllib / "system" / "main.py") == {
        "join_ratio": 1.0,
        "batch_num_per_client": 2,
        "other": None,
    }
