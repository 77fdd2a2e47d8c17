"""Whatever a client sends, the server goes on: a few hundred of the messages of benchmarks/attack_messages.py."""

import importlib.util
import logging
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "attack_messages.py"
spec = importlib.util.spec_from_file_location("attack_messages", PATH)
attack_messages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attack_messages)


@pytest.mark.parametrize("name", attack_messages.KINDS)
def test_a_hostile_member_stops_nothing_and_spoils_nothing(name, caplog):
    caplog.set_level(logging.ERROR, "idiolect")
    counts = attack_messages.attack(attack_messages.KINDS[name], 40, seed=1)
    assert not any(counts[harm] for harm in attack_messages.HARM)
    assert counts["refused"] + counts["accepted"] == 40
    assert counts["refused"] > 20
