"""The example that draws FedFac's figures 1, 2 and 10."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


def test_it_draws_three_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "fedfac_neurons.py"))
    example["main"](["--out", str(tmp_path), "--clients", "10", "--rounds", "1"])
    names = {"neurons.png", "neuron-entropies.png", "feature-maps.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())
    assert {Path(line).name for line in capsys.readouterr().out.split()} == names
