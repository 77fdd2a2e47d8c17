"""FedFac's simulation study: the miniature runs, and the oracle finds the true partition."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from idiolect.data.sources import fedfac_simulation

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "fedfac_simulation.py"
    spec = importlib.util.spec_from_file_location("fedfac_simulation_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


def test_the_miniature_writes_curves_and_figures(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main(["--quick", "--out", str(tmp_path)])
    table = pl.read_csv(tmp_path / "curves.csv")
    assert set(table["partition"]) == set(example.LINES)
    assert table["accuracy"].is_between(0, 1).all()
    assert table.filter(pl.col("partition") == "dynamic")["stable"].is_between(0, 1).all()
    for name in ("accuracy.png", "stability.png"):
        assert (tmp_path / name).stat().st_size > 10_000
    said = capsys.readouterr().out
    assert "the dynamic partition settles" in said
    assert "holds: all four beat a random partition" in said
    example.main(["--quick", "--out", str(tmp_path)])
    assert "partition = " not in capsys.readouterr().out  # nothing was left to do
    assert pl.read_csv(tmp_path / "curves.csv").equals(table)
    with pytest.raises(SystemExit, match="another size"):
        example.main(["--out", str(tmp_path)])


def test_the_study_has_the_papers_settings(example: ModuleType) -> None:
    assert example.Study().settings == [(0.3, 0.4), (0.5, 0.4), (0.7, 0.4), (0.5, 0.3), (0.5, 0.5), (0.5, 0.7)]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_factor_analysis_of_the_true_weights_finds_the_true_partition(example: ModuleType, share: float) -> None:
    """All partitions of the study have the true number of shared units; the oracle's are the true ones."""
    _, truth = fedfac_simulation(30, share, 0.4, 0, train=2, val=0, test=2)
    found = example.partitions(truth)
    true, oracle = set(found["true"].shared), set(found["oracle"].shared)
    assert len(oracle) == len(true) == round(200 * share)
    assert len(true & oracle) >= 0.95 * len(true)
    assert found["static"].tau == found["dynamic"].tau == pytest.approx(1 - share)
    assert found["random once"].share == pytest.approx(share)


def test_a_claim_that_fails_is_called_so(example: ModuleType) -> None:
    """Verdicts are numbers, not hopes: here the random partition is as good as all others."""
    rows = [
        {"round": round, "accuracy": 0.8, "stable": 0.5, "seed": 0, "p": 0.5, "alpha": 0.4, "partition": name}
        for name in example.LINES
        for round in range(1, 9)
    ]
    verdicts = [holds for _, holds, _ in example.verdicts(pl.DataFrame(rows))]
    assert verdicts == [True, False, True, False]
