"""The script that records what all methods compute."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "record"


@pytest.fixture
def record(monkeypatch):
    """The script as a module."""
    loader = SourceFileLoader("record", str(SCRIPT))
    module = module_from_spec(spec_from_loader("record", loader))
    monkeypatch.setitem(sys.modules, "record", module)
    loader.exec_module(module)
    return module


def test_a_run_is_recorded_in_parts_to_the_bit(record):
    case = record.Case("fedavg", "loop", "plain")
    name, parts = record.recorded(case)
    assert name == "fedavg | loop | plain"
    assert record.recorded(case) == (name, parts)
    for part in ("server slot params", "predictions of the selected round", "metrics seen personal test loss"):
        assert len(parts[part].split()[0]) == 16, f"{part}: {parts[part]}"
    assert parts != record.recorded(record.Case("fedprox(mu=0.5)", "loop", "plain"))[1]
