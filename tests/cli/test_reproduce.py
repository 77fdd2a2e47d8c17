"""`idiolect reproduce`: run, list, check, quick versions, and sentences for what is wrong."""

import json

import pytest
import yaml

CLAIM = {
    "paper": "Nobody",
    "where": "Table 1",
    "claim": "Local training is above FedAvg.",
    "setup": "Digits.",
    "scaled": "Nothing.",
    "settings": {"data": "digits", "clients": 3, "model": "linear", "rounds": 1, "lr": 0.1, "engine": "loop"},
    "methods": ["local", "fedavg"],
    "tuning": {"values": {"others": ["lr=0.1"]}},
    "seeds": 2,
    "verdicts": [{"says": "Local is above.", "higher": "local", "than": "all"}],
}


@pytest.fixture(autouse=True)
def claims(folder):
    """A claim on digits, one whose data are missing, and one that cannot be run."""
    place = folder / "reproductions"
    place.mkdir()
    impossible = {"paper": "Nobody", "where": "Table 2", "claim": "It is large.", "not_runnable": "It is too large."}
    files = {"tiny": CLAIM, "far": CLAIM | {"settings": {"data": "mnist"}}, "impossible": impossible}
    for name, values in files.items():
        (place / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return place


def test_a_claim_is_run_listed_and_checked(call, claims):
    code, out, _ = call("reproduce", "tiny", "--quiet")
    assert code == 0
    assert "Local is above." in out
    path = claims / "results" / "tiny.json"
    assert "reproductions/results/tiny.json" in out
    _, out, _ = call("reproduce", "--list")
    states = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "committed" in states["tiny"]
    assert "0 of 6" in states["far"]
    assert "not runnable here" in states["impossible"]
    code, out, _ = call("reproduce", "tiny", "--check", "--quiet")
    assert code == 0
    assert "to the bit (the same kind of machine)" in out
    result = json.loads(path.read_text())
    result["cases"][0]["methods"][0]["runs"][0]["score"] = 0.0
    path.write_text(json.dumps(result))
    code, out, _ = call("reproduce", "tiny", "--check", "--quiet")
    assert code == 1
    assert "different" in out
    assert json.loads(path.read_text()) == result, "a check writes nothing"


def test_all_goes_on_where_data_are_missing_and_quick_results_are_kept_apart(call, claims, folder):
    code, out, _ = call("reproduce", "all", "--quick", "--quiet")
    assert code == 0
    assert "far needs the data mnist, which are not here" in out
    assert "not runnable here: It is too large." in out
    assert not (claims / "results").exists()
    assert json.loads((folder / "results/reproductions/quick/results/tiny.json").read_text())["quick"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "which claim?"),
        (("tyni",), "Did you mean tiny"),
        (("far",), "far needs the data mnist"),
        (("tiny", "--check"), "no committed result"),
        (("tiny", "--claims", "nowhere"), "holds no claims"),
    ],
)
def test_what_is_wrong_gets_a_sentence(call, arguments, said):
    code, _, err = call("reproduce", *arguments, "--quiet")
    assert code == 2
    assert said in err


def test_a_tuning_is_taken_from_a_committed_result_and_said_so(call, claims):
    follower = CLAIM | {"tuning": {"of": "tiny"}, "settings": {**CLAIM["settings"], "rounds": 2}, "minutes": 90}
    (claims / "follower.yaml").write_text(yaml.safe_dump(follower))
    _, out, _ = call("reproduce", "--list")
    assert " 90" in next(line for line in out.splitlines() if line.startswith("follower"))
    assert call("reproduce", "tiny", "--quiet")[0] == 0
    for option, said in ((["--retune"], False), ([], True)):
        code, out, _ = call("reproduce", "follower", "--quiet", "--cache", f"other{said}", *option)
        assert code == 0
        assert ("tuned as in tiny, from its committed result" in out) == said


def test_the_federations_of_the_grand_table_are_run_alike(call, claims):
    table = {name: value for name, value in CLAIM.items() if name not in ("settings", "verdicts")}
    table |= {"federations": {"a": {"kind": "label skew", "settings": CLAIM["settings"]}}, "where": "all"}
    (claims / "grand.yaml").write_text(yaml.safe_dump(table))
    code, out, _ = call("reproduce", "grand-a", "--quiet")
    assert code == 0
    assert "best: " in out
    assert json.loads((claims / "results" / "grand-a.json").read_text())["kind"] == "label skew"
