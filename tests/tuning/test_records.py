"""The records of a tuning come back as they were written, and damaged ones are named."""

import json

import pytest

from idiolect.core.errors import RunFolderError
from idiolect.tuning.records import TrialRecord, read_trials, write_trials

TRIAL = TrialRecord("fedprox", 0, {"mu": 0.1}, "fedprox(mu=0.1)", 0.05, 0.5, 2, 10, 0.1)


def test_trials_come_back(tmp_path):
    write_trials(tmp_path, [TRIAL])
    assert read_trials(tmp_path / "trials.jsonl") == [TRIAL]
    assert read_trials(tmp_path / "nothing.jsonl") == []


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"score": 1}', json.dumps(vars(TRIAL) | {"score": "a"}), json.dumps(vars(TRIAL) | {"values": 3})],
)
def test_damaged_trials_are_named(tmp_path, text):
    (tmp_path / "trials.jsonl").write_text(text)
    with pytest.raises(RunFolderError, match=r"trials.jsonl is damaged; remove it to start again"):
        read_trials(tmp_path / "trials.jsonl")


def test_a_changed_number_is_noticed(tmp_path):
    write_trials(tmp_path, [TRIAL])
    path = tmp_path / "trials.jsonl"
    path.write_text(path.read_text().replace('"score": 0.5', '"score": 0.7'))
    with pytest.raises(RunFolderError, match=r"trials.jsonl is damaged"):
        read_trials(path)
