"""A claim's file is checked when it is read, before anything runs."""

from pathlib import Path

import pytest

from idiolect.core.errors import InputError
from idiolect.reproductions import read_claim, read_claims
from idiolect.reproductions.tunings import list_tasks

CLAIMS = Path(__file__).parents[2] / "reproductions"


@pytest.fixture
def read(tmp_path, write, change):
    """Reads the tiny claim with some entries changed."""
    return lambda **changes: read_claim(write(tmp_path, claim=change(**changes)) / "claim.yaml")


def test_a_claim_has_what_its_file_says(claims, tiny):
    claim = claims["tiny"]
    assert (claim.paper, claim.where, claim.methods, claim.seeds) == ("Nobody", "Table 1", ("local", "fedavg"), (0, 1))
    ((case, rule),) = claim.rules
    assert case.settings == tiny["settings"]
    assert (rule.relation, str(rule.left), [str(side) for side in rule.right]) == ("higher", "local", ["fedavg"])
    assert rule.theirs == {"local": 90, "fedavg": 80}


def test_every_case_has_the_common_settings_and_its_own(claims, settings):
    cases = claims["follower"].cases
    assert [case.settings["local_epochs"] for case in cases] == [1, 2]
    assert all(case.settings["clients"] == settings["clients"] for case in cases)
    assert [len(case.rules) for case in cases] == [1, 2], "a rule may be about one case only"


def test_the_papers_numbers_may_differ_by_case(read, tiny):
    rule = {**tiny["verdicts"][0], "theirs": {"a": {"local": 1}, "b": {"local": 2}}}
    claim = read(cases={"a": {}, "b": {}, "c": {}}, verdicts=[rule])
    assert [case.rules[0].theirs for case in claim.cases] == [{"local": 1}, {"local": 2}, {}]


def test_the_quick_version_is_small_and_says_so(read):
    values = {"others": ["lr=0.1,0.3,1"], "ditto": ["lr=0.1,1", "lam=0.1,1"]}
    rule = {"says": "Local is above.", "higher": "local", "than": "all"}
    changes = {"tuning": {"values": values}, "seeds": 5, "quick": {"clients": 3}, "verdicts": [rule]}
    claim = read(methods=["local", "ditto"], **changes).shrink()
    assert claim.is_quick
    assert claim.seeds == (0, 1)
    assert claim.cases[0].settings | {"rounds": 2, "clients": 3} == claim.cases[0].settings
    assert [claim.tuning.of_method(method) for method in claim.methods] == [("lr=0.1,0.3",), ("lr=0.1,1",)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": ["local", "fedavgg"]}, "fedavg"),
        ({"colour": "red"}, "a claim has no 'colour'"),
        ({"settings": {"round": 3}}, "there is no setting 'round'"),
        ({"tuning": {"values": {"others": ["lam=1,2"]}}}, "does not try learning rates"),
        ({"tuning": {"values": {"ditto": ["lr=1,2"]}}}, "none of the methods"),
        ({"tuning": {"values": {"others": ["lr=2001-13-45"]}}}, "the value '2001-13-45' cannot be read"),
        ({"tuning": {"values": "x"}}, "cannot be read as a claim"),
        ({"minutes": "x"}, "cannot be read as a claim"),
        ({"tuning": {}}, "give one of them"),
        ({"verdicts": [{"says": "", "higher": "ditto", "than": "all"}]}, "ditto is none of the methods"),
        ({"verdicts": [{"says": "", "higher": "local", "lower": "fedavg", "than": "all"}]}, "needs one of higher"),
        ({"verdicts": [{"says": "", "equal": "local", "than": "all"}]}, "says `within`"),
        ({"verdicts": [{"says": "", "higher": "local", "than": "all", "measure": "scores"}]}, "Did you mean"),
        ({"verdicts": [{"says": "", "higher": "local", "than": ["fedavg @ b"]}]}, "names the case 'b'"),
        ({"where": None}, "where"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(read, changes, words):
    with pytest.raises(InputError) as error:
        read(**changes)
    said = "\n".join([str(error.value), *getattr(error.value, "__notes__", ())])
    assert words in said
    assert "claim.yaml" in said


def test_a_folder_without_claims_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match="clone of the repository"):
        read_claims(tmp_path)


def test_all_claims_of_the_papers_can_be_read_and_give_every_method_as_many_trials(tmp_path):
    claims = read_claims(CLAIMS)
    papers = {claim.paper for claim in claims.values() if not claim.is_table}
    assert papers == {"FedLAG", "FLAYER", "LG-Mix", "pFedGate", "FedFac"}
    for claim in claims.values():
        list_tasks(claim, claims, tmp_path)
        assert claim.not_runnable or all(
            case.settings["engine"] in ("loop", "workers(count=1)") for case in claim.cases
        )
        assert claim.not_runnable or len(claim.seeds) >= 3
