"""A claim on handwritten digits that takes a second."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from idiolect.reproductions import read_claims

SETTINGS = {"data": "digits", "partition": "dirichlet:0.1", "clients": 5, "model": "linear", "rounds": 2, "lr": 0.1}
TINY: dict[str, Any] = {
    "paper": "Nobody",
    "where": "Table 1",
    "claim": "Local training is above FedAvg.",
    "setup": "Digits.",
    "scaled": "Nothing.",
    "settings": {**SETTINGS, "engine": "loop"},
    "methods": ["local", "fedavg"],
    "tuning": {"values": {"others": ["lr=0.1,0.3"]}},
    "seeds": 2,
    "verdicts": [{"says": "Local is above.", "higher": "local", "than": "all", "theirs": {"local": 90, "fedavg": 80}}],
}


def change_tiny(**changes: Any) -> dict[str, Any]:
    """The tiny claim with some entries changed; None removes one."""
    values = copy.deepcopy(TINY) | changes
    return {name: value for name, value in values.items() if value is not None}


def write_files(folder: Path, **files: dict[str, Any]) -> Path:
    """A folder of claims, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return folder


@pytest.fixture(scope="session")
def settings():
    return SETTINGS


@pytest.fixture(scope="session")
def tiny():
    """What the file of the tiny claim says."""
    return TINY


@pytest.fixture(scope="session")
def change():
    return change_tiny


@pytest.fixture(scope="session")
def write():
    return write_files


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with the tiny claim, one that is tuned like it, and one that cannot be run."""
    follower = change_tiny(
        methods=["ditto(lam=0.1)", "fedlag(fedavg)"],
        tuning={"of": "tiny", "like": {"ditto(lam=0.1)": "local", "fedlag(fedavg)": "fedavg"}},
        cases={"one": {"local_epochs": 1}, "two": {"local_epochs": 2}},
        verdicts=[
            {"says": "Ditto is above.", "higher": "ditto(lam=0.1)", "than": ["fedlag(fedavg)"]},
            {"says": "Two help.", "case": "two", "higher": "ditto(lam=0.1)", "than": ["ditto(lam=0.1) @ one"]},
        ],
    )
    impossible = {"paper": "Nobody", "where": "Table 2", "claim": "It is large.", "not_runnable": "It is too large."}
    return write_files(tmp_path_factory.mktemp("claims"), tiny=TINY, follower=follower, impossible=impossible)


@pytest.fixture(scope="session")
def claims(folder):
    return read_claims(folder)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")
