"""The example of FedLAG's toy problem: conflicts with different domains, none with the same one."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
EXAMPLE = Path(__file__).parents[2] / "examples" / "fedlag_toy.py"


def test_conflicts_appear_with_different_domains_and_vanish_with_the_same(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    found = main(["--rounds", "4", "--steps", "20", "--out", str(tmp_path / "new" / "toy.png")])
    apart, alike = found["different domains"], found["same domain"]
    assert len(apart.conflicts) == 4
    assert min(apart.conflicts) >= 2
    assert {"1-3", "2-4"} <= set(apart.pairs)
    assert set(alike.conflicts) == {0}
    assert alike.pairs == []
    assert alike.fedlag == alike.fedavg  # no conflict, no personal layer
    printed = capsys.readouterr().out
    assert "different domains" in printed
    assert "none" in printed
    assert (tmp_path / "new" / "toy.png").stat().st_size > 10_000
