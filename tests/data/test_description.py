"""What clients say of their data, and what cannot be said."""

import json

import pytest
import torch

from idiolect.core.errors import DataError, InputError
from idiolect.data import load
from idiolect.data.description import describe, read_description

PLAIN = {"x": [[4], "float32"], "y": [[], "int64"], "classes": 2, "words": None}
TABLE = {
    **PLAIN, "x": [[3], "float32"], "names": {"classes": ["no", "yes"], "features": ["age", "kind=new", "age missing"]},
    "table": {
        "columns": [["age", [], True, 0], ["kind", ["new"], False, 0]], "scale": "federated", "rule": "mean",
        "gaps": [True, False], "sums": [[4.0, 5.0], [100.0, 2.0], [3000.0, 2.0]],
    },
}  # fmt: skip


def told(**changes):
    facts = json.loads(json.dumps(TABLE))
    facts["table"] |= changes
    return json.dumps(facts)


def test_what_is_said_is_read_back():
    for text in (json.dumps(PLAIN, sort_keys=True), told()):
        assert json.loads(str(read_description(text))) == json.loads(text)


def test_descriptions_of_tables_join_their_values_gaps_and_sums():
    facts = json.loads(told())
    facts["table"] |= {"columns": [["age", [], True, 0], ["kind", ["known"], False, 0]], "gaps": [False, False]}
    facts |= {"x": [[2], "float32"], "names": {"classes": ["no", "unknown"], "features": ["age", "kind=known"]}}
    joined = read_description(told()).join(read_description(json.dumps(facts)))
    assert joined.names.classes == ("no", "unknown", "yes")
    assert joined.names.features == ("age", "kind=known", "kind=new", "age missing")
    assert joined.x == ((4,), "float32")
    assert joined.table.sums.known.tolist() == [8.0, 10.0, 10.0]
    assert joined.table.sums.total.tolist() == [200.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "changes",
    [
        {"gaps": [True]},
        {"gaps": [1, 0]},
        {"scale": "all"},
        {"sums": [[4.0, 5.0], [float("inf"), 2.0], [3000.0, 2.0]]},
        {"sums": [[-4.0, 5.0], [100.0, 2.0], [3000.0, 2.0]]},
        {"sums": [[4.0], [100.0], [3000.0]]},
        {"columns": [["age", [], True, 10**12], ["kind", ["new"], False, 0]]},
        {"columns": [["age", [], True, -1], ["kind", ["new"], False, 0]]},
        {"columns": [["kind", [], True, 0], ["kind", ["new"], False, 0]]},
        {"columns": [["age", [], True, 0], ["kind", [3], False, 0]]},
    ],
)
def test_what_cannot_be_is_refused(changes):
    with pytest.raises(InputError, match="a client's description of its data cannot be used"):
        read_description(told(**changes))


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ((torch.zeros(4, 3), torch.zeros(4)), "its targets are of shape"),
        ((torch.zeros(4, 2), [0, 1, 0, 1]), "its inputs are of shape"),
        ((torch.zeros(4, 3), ["x", "y", "x", "y"]), "some clients have labels that are text"),
    ],
)
def test_data_of_different_kinds_are_not_joined(other, problem):
    first = describe(load({"a": (torch.zeros(4, 3), [0, 1, 0, 1])}), 0)
    with pytest.raises(DataError, match=problem):
        first.join(describe(load({"b": other}), 0))
