"""Running a claim: equal trials, shared runs, results that can be checked."""

import copy
import json
import math

import pytest

import idiolect
from idiolect.core.errors import DataError, InputError
from idiolect.reproductions import find_state, read_claims, reproduce
from idiolect.reproductions.api import find_committed, list_runs, read_finished
from idiolect.reproductions.check import check_result
from idiolect.reproductions.files import read_result, result_path, write_result
from idiolect.reproductions.ledger import write_ledger
from idiolect.reproductions.measures import MEASURES, FinishedRun
from idiolect.reproductions.tunings import Settled, list_tasks


@pytest.fixture(scope="module")
def result(claims, cache):
    return reproduce(claims["tiny"], claims, cache=cache)


def test_every_method_has_its_trials_its_settings_and_a_record_per_seed(result):
    (case,) = result["cases"]
    for method in case["methods"]:
        assert [trial["lr"] for trial in method["trials"]] == [0.1, 0.3]
        best = max(method["trials"], key=lambda trial: trial["score"])
        assert (method["expression"], method["lr"]) == (best["expression"], best["lr"])
        assert [run["seed"] for run in method["runs"]] == [0, 1]
        assert all(run["gradients"] > 0 and run["seconds"] > 0 for run in method["runs"])
    assert result["command"] == "idiolect reproduce tiny"


def test_scores_are_those_of_runs_at_the_chosen_settings(result, settings):
    method = result["cases"][0]["methods"][1]
    run = idiolect.run(method["expression"], seed=1, **{**settings, "engine": "loop", "lr": method["lr"]})
    assert method["runs"][1]["score"] == run.summary["accuracy"]["selected"]["weighted"]


def test_tuning_has_a_federation_of_its_own_and_sees_no_test_data(claims, cache, result):
    for task in list_tasks(claims["tiny"], claims, cache).values():
        assert task.settings["seed"] == 1000
        assert task.settings["seed"] not in claims["tiny"].seeds


def test_the_verdict_stands_beside_the_papers_numbers(result):
    (verdict,) = result["cases"][0]["verdicts"]
    assert verdict["verdict"] in ("holds", "no difference")
    assert verdict["theirs"] == {"local": 90, "fedavg": 80}
    scores = {m["method"]: [run["score"] for run in m["runs"]] for m in result["cases"][0]["methods"]}
    gap = sum(a - b for a, b in zip(scores["local"], scores["fedavg"], strict=True)) / 2
    assert verdict["differences"][0]["difference"] == pytest.approx(gap)


def test_what_is_complete_is_not_run_again(claims, cache, result, monkeypatch):
    monkeypatch.setattr("idiolect.reproductions.api.carry_out_all", None)
    monkeypatch.setattr("idiolect.reproductions.tunings.tune", None)
    assert reproduce(claims["tiny"], claims, cache=cache) == result
    state = find_state(claims["tiny"], claims, cache)
    assert state.is_done
    assert state.total == 2 * (2 + 2)
    assert state.seconds > 0


def test_a_run_that_was_killed_goes_on(claims, tmp_path, settings):
    state = find_state(claims["tiny"], claims, tmp_path)
    assert (state.done, state.total) == (0, 8)
    assert math.isnan(state.seconds_left)
    case, settled = claims["tiny"].cases[0], Settled("local", 0.1)
    first, _ = list_runs(case, settled, claims["tiny"], tmp_path)
    idiolect.run("local", out=first.folder, seed=0, engine="loop", **settings)
    (first.folder / "summary.json").unlink()  # as if it had been killed before the end
    assert read_finished(first) is None


def test_claims_that_are_tuned_like_another_take_its_rates_over(claims, cache, result):
    followed = {m["method"]: m["lr"] for m in result["cases"][0]["methods"]}
    outcome = reproduce(claims["follower"], claims, cache=cache)
    for case in outcome["cases"]:
        by_name = {m["method"]: m for m in case["methods"]}
        assert by_name["ditto(lam=0.1)"]["lr"] == followed["local"]
        assert by_name["fedlag(fedavg)"]["lr"] == followed["fedavg"]
        assert by_name["fedlag(fedavg)"]["like"] == "fedavg"
    two_help = outcome["cases"][1]["verdicts"][1]
    means = [sum(run["score"] for run in case["methods"][0]["runs"]) / 2 for case in outcome["cases"]]
    assert two_help["differences"][0]["difference"] == pytest.approx(means[1] - means[0])


def test_unequal_numbers_of_trials_are_refused(tmp_path, write, change):
    values = {"local": ["lr=0.1,0.3"], "fedavg": ["lr=0.1,0.3,1"]}
    claims = read_claims(write(tmp_path, unfair=change(tuning={"values": values})))
    with pytest.raises(InputError, match="different numbers of trials: local 2, fedavg 3"):
        reproduce(claims["unfair"], claims, cache=tmp_path / "cache")


def test_data_that_are_missing_are_named_in_a_sentence(tmp_path, monkeypatch, write, change):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    claims = read_claims(write(tmp_path, far=change(settings={"data": "mnist"})))
    with pytest.raises(DataError, match="far needs the data mnist, which are not here"):
        reproduce(claims["far"], claims, cache=tmp_path / "cache")


def test_a_claim_that_cannot_be_run_says_why(claims):
    outcome = reproduce(claims["impossible"], claims)
    assert (outcome["verdict"], outcome["why"]) == ("not runnable here", "It is too large.")


# -- measures ---------------------------------------------------------------------------------------------


def test_measures_are_numbers_of_the_run(tmp_path, settings):
    run = idiolect.run("fedlag(k=0)", unseen=0.2, eval_global=True, engine="loop", out=tmp_path / "run", **settings)
    finished = FinishedRun(tmp_path / "run", run.summary)
    values = {name: MEASURES[name](finished) for name in MEASURES}
    seen = run.summary["accuracy"]["selected"]
    assert values["score"] == seen["weighted"]
    assert values["bottom_decile"] == seen["bottom_decile"]
    assert values["generalization_gap"] == pytest.approx(
        seen["weighted"] - run.summary["unseen"]["selected"]["weighted"]
    )
    assert values["personal_gain"] == 0, "FedAvg's personal models are the shared one"
    recorded = run.metrics.filter(run.metrics["metric"].str.starts_with("conflicts/"))["value"].sum()
    assert values["conflicts"] == recorded / 2 > 0
    assert values["rounds_to_80"] <= values["rounds_to_90"] <= 2
    assert math.isnan(values["settled_units"])
    assert math.isnan(values["labels_of_near_gates"])
    assert math.isnan(values["ratio_decline"])


def test_how_alike_layers_are_is_compared_below_and_in_the_head(tmp_path, settings):
    changes = {"model": "mlp(hidden=[8])", "clients": 3, "engine": "loop"}
    run = idiolect.run("fedavg", out=tmp_path / "run", **{**settings, **changes})
    finished = FinishedRun(tmp_path / "run", run.summary)
    trained, first = (list(idiolect.report.layer_similarity(run, models).values()) for models in ("trained", "first"))
    assert MEASURES["body_above_head"](finished) == pytest.approx(trained[0] - trained[1])
    assert MEASURES["body_growth"](finished) == pytest.approx(trained[0] - first[0])


# -- checks and the ledger ----------------------------------------------------------------------------------


def test_the_same_result_is_equal_to_the_bit(result, tmp_path):
    write_result(result, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["claim"] == "tiny"
    check = check_result(result, read_result(tmp_path / "a.json"))
    assert (check.kind, check.is_same_machine) == ("to the bit", True)


def moved(result, by, **changes):
    other = copy.deepcopy(result) | changes
    other["cases"][0]["methods"][0]["runs"][0]["score"] += by
    return other


def test_on_the_same_machine_only_the_same_bits_will_do(result):
    check = check_result(moved(result, 1e-12), result)
    assert check.kind == "different"
    assert "other bits" in check.lines[0]


def test_what_only_one_of_two_results_has_is_different(result):
    """Also what the committed one lacks, so that a file without scores agrees with nothing."""
    less = copy.deepcopy(result)
    gone = less["cases"][0]["methods"].pop()
    for check in (check_result(result, less), check_result(less, result)):
        assert check.kind == "different"
        assert check.lines[0].startswith(f"{gone['method']}: ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), None),
        ((), []),
        (("cases",), []),
        (("cases",), "x"),
        (("definition",), None),
        (("cases", 0, "verdicts"), 3),
        (("cases", 0, "methods", 0, "runs"), {}),
        (("cases", 0, "methods", 0, "runs", 0), {}),
        (("cases", 0, "methods", 0, "runs", 0, "score"), "high"),
    ],
)
def test_a_file_that_is_no_whole_result_is_one_sentence(result, tmp_path, path, value):
    damaged = {"result": copy.deepcopy(result)}
    place = damaged
    for key in ("result", *path)[:-1]:
        place = place[key]
    place[("result", *path)[-1]] = value
    write_result(damaged["result"], tmp_path / "a.json")
    with pytest.raises(
        InputError, match=r"a\.json is not the whole result of a claim; take it from the repository again$"
    ):
        read_result(tmp_path / "a.json")


def test_on_another_machine_the_mean_lies_within_the_interval(result):
    assert check_result(moved(result, 1e-12, numerics=-1), result).kind == "within the interval"
    check = check_result(moved(result, 9.0, numerics=-1), result)
    assert check.kind == "different"
    assert check.lines[0].startswith("local: ")
    assert not check.is_same_machine


def test_a_version_with_the_same_numbers_is_held_to_the_bit(result):
    assert check_result(moved(result, 0.0, version="9"), result).kind == "to the bit"
    assert check_result(moved(result, 1e-12, version="9"), result).kind == "different"


def test_a_claim_whose_file_has_changed_is_not_compared(result):
    check = check_result(result, result | {"definition": "other"})
    assert check.kind == "different"
    assert "file has changed" in check.lines[0]


def test_the_ledger_has_a_row_per_verdict_and_says_what_is_not_run(folder, result):
    path = result_path(folder, "tiny")
    write_result(result, path)
    try:
        parts = write_ledger(folder)
    finally:
        path.unlink()
    rows = {line.split("|")[1].strip(): line for line in parts["ledger"].splitlines()[2:]}
    assert "90.00 / 80.00 `fedavg`" in rows["[tiny](#tiny)"]
    assert f"**{result['cases'][0]['verdicts'][0]['verdict']}**" in rows["[tiny](#tiny)"]
    assert "not run yet" in rows["[follower](#follower)"]
    assert "not runnable here" in rows["[impossible](#impossible)"]
    assert "1 of the 2 claims" in parts["count"]
    assert "| `fedavg` |" in parts["details"]


# -- tunings that are committed -----------------------------------------------------------------------------


@pytest.fixture
def clone(folder, result, claims, tmp_path, write, change):
    """A folder of claims as a fresh clone has it: files and the committed result of one, but no cache."""
    for path in folder.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    write_result(result, result_path(tmp_path, "tiny"))
    return tmp_path


def test_a_claim_takes_the_tuning_of_another_from_its_committed_result(clone, claims, cache, monkeypatch, result):
    found = find_committed(claims["follower"], claims, clone / "cache", clone)
    assert found == ["tiny"]
    expected = reproduce(claims["follower"], claims, cache=cache)
    monkeypatch.setattr("idiolect.reproductions.tunings.tune", None)
    outcome = reproduce(claims["follower"], claims, cache=clone / "cache", committed=clone)
    assert check_result(outcome, expected).kind == "to the bit"
    assert [m["lr"] for m in outcome["cases"][0]["methods"]] == [m["lr"] for m in expected["cases"][0]["methods"]]
    assert outcome["cases"][0]["methods"][0]["tuned_in"] == "tiny"


@pytest.mark.parametrize("change", [{"definition": "other"}, {"numerics": -1}])
def test_not_from_one_of_another_file_or_other_numerics(clone, claims, result, change):
    write_result(result | change, result_path(clone, "tiny"))
    assert find_committed(claims["follower"], claims, clone / "cache", clone) == []


def test_the_claims_own_trials_are_always_made(clone, claims):
    """Else a check of it would repeat what it checks."""
    assert find_committed(claims["tiny"], claims, clone / "cache", clone) == []


def test_options_that_a_claim_is_about_are_not_taken_over(clone, claims, tmp_path, write, change):
    tuning = {"values": {"others": ["lr=0.1", "lam=0.5,2"]}}
    rule = {"says": "", "higher": "ditto", "than": 0}
    follow = {"of": "tuned", "like": {"ditto(epochs=1)": "ditto"}}
    files = {
        "tuned": change(methods=["ditto"], tuning=tuning, verdicts=[rule]),
        "with": change(methods=["ditto(epochs=1)"], tuning=follow, verdicts=[rule | {"higher": "ditto(epochs=1)"}]),
        "without": change(
            methods=["ditto(epochs=1)"],
            tuning=follow | {"without": ["lam"]},
            verdicts=[rule | {"higher": "ditto(epochs=1)"}],
        ),
    }
    place = write(tmp_path / "more", **files)
    known = read_claims(place)
    write_result(reproduce(known["tuned"], known, cache=tmp_path / "a"), result_path(place, "tuned"))
    for name, has in (("with", True), ("without", False)):
        outcome = reproduce(known[name], known, cache=tmp_path / "b", committed=place)
        assert ("lam=" in outcome["cases"][0]["methods"][0]["expression"]) == has


def test_a_result_says_under_which_protocol_and_tuning_it_holds(result, settings):
    (case,) = result["cases"]
    held = case["protocol"]["settings"]
    assert {name: held[name] for name in ("data", "partition", "clients", "model", "engine")} == {
        name: {**settings, "engine": "loop"}[name] for name in ("data", "partition", "clients", "model", "engine")
    }
    assert not held.keys() & {"method", "lr", "seed"}, "what differs between runs stands with each"
    assert case["protocol"]["selection"] == "sample-weighted validation"
    assert case["protocol"]["settings"]["optimizer"] == "sgd"
    assert result["tuning"] == {"values": {"others": ["lr=0.1,0.3"]}, "seed": 1000, "case": ""}
    assert all(trial["seconds"] > 0 for trial in case["methods"][0]["trials"])
