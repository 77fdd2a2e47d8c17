"""The files of results: the JSON that is committed, and the hash that says of which claim it is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import finite_or_null, write_text
from ..core.names import file_name
from .claims import Claim
from .folders import RESULTS, digest

ClaimResult = dict[str, Any]
"""A claim's result as plain values, as in its JSON."""


def define(claim: Claim) -> str:
    """A hash of what determines a claim's numbers and verdicts."""
    values = dataclasses.asdict(claim)
    budget = {} if claim.budget == "rounds" else {"budget": claim.budget}
    return digest({name: values[name] for name in ("methods", "tuning", "seeds", "cases")} | budget)


def result_path(folder: Path, name: str) -> Path:
    """Where the result of a claim lies, in the folder of claims.

    >>> result_path(Path("reproductions"), "grand-mnist").as_posix()
    'reproductions/results/grand-mnist.json'
    """
    return folder / RESULTS / f"{file_name(name)}.json"


def write_result(result: ClaimResult, path: Path) -> None:
    """Write a result; what is not finite is null."""
    write_text(path, json.dumps(finite_or_null(result), indent=1) + "\n")


def read_result(path: Path) -> ClaimResult | None:
    """A result from its file; None where there is none."""
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}; take it from the repository again") from error
    if not is_result(values):
        raise InputError(f"{path} is not the whole result of a claim; take it from the repository again")
    return dict(values)


def is_result(values: Any) -> bool:
    """Whether values from a file are a result: every case with its methods, every run of theirs with its score."""
    match values:
        case {"definition": str(), "seconds": int() | float(), "cases": [_, *_] as cases}:
            return all(map(_is_case, cases))
    return False


def _is_case(values: Any) -> bool:
    match values:
        case {"case": str(), "methods": [*methods], "verdicts": [*_]}:
            return all(map(_is_method, methods))
    return False


def _is_method(values: Any) -> bool:
    match values:
        case {"method": str(), "expression": str() | None, "lr": int() | float() | None, "runs": [*runs]}:
            return all(isinstance(run, dict) and isinstance(run.get("score", ""), int | float | None) for run in runs)
    return False
