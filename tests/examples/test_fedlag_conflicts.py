"""The example of conflicts with alike and with different clients."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
EXAMPLE = Path(__file__).parents[2] / "examples" / "fedlag_conflicts.py"


def test_different_clients_have_more_conflicts_and_both_are_drawn(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    found = main(["--rounds", "3", "--clients", "6", "--out", str(tmp_path / "new" / "conflicts.png")])
    assert found["iid"] < found["dirichlet:0.1"]
    assert "conflicts per round" in capsys.readouterr().out
    assert (tmp_path / "new" / "conflicts.png").stat().st_size > 5000
