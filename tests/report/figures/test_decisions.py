"""What each method decided: panels are chosen by what was recorded, and show what was recorded."""

import numpy as np
import pytest
import torch

from idiolect.report import layer_similarity
from idiolect.report.figures import decisions, models
from idiolect.report.figures.gates import gating_networks
from idiolect.report.figures.records import Records, record_pictures


def names(study, method):
    return [picture.name.partition("-")[2] for picture in decisions.decision_pictures(study, method)]


def test_a_method_that_records_nothing_has_no_panel(study):
    assert decisions.decision_pictures(study, "fedavg") == []


def test_conflicts_are_shown_unit_by_round(study):
    method = next(each for each in study.methods if each.startswith("fedlag"))
    titles = [picture.title for picture in decisions.decision_pictures(study, method)]
    assert titles == [
        "Conflicts and personal units",
        "Predicted gain of a personal unit",
        "Personal units in the convergence bound",
    ]
    held = Records(study, study.first(method))
    server = study.first(method).records
    assert held.units("conflicts") == ["fc1", "fc2"]
    for row, unit in enumerate(held.units("conflicts")):
        for column, round in enumerate(held.rounds):
            value = server.filter(metric=f"conflicts/{unit}", round=round)["value"].item()
            assert held.by_unit("conflicts")[row, column] == value


def test_ratios_have_a_line_per_client(study):
    assert names(study, "lgmix") == ["lambda", "lambda_newest"]
    held = Records(study, study.first("lgmix"))
    lines = held.by_client("lambda")
    assert lines.shape == (len(study.federation.seen), len(held.rounds))
    assert np.all((lines > 0) & (lines < 1))


def test_rates_and_shares_are_means_over_clients(study):
    method = next(each for each in study.methods if each.startswith("flayer"))
    held = Records(study, study.first(method))
    assert {"rate", "sent", "own_accuracy"} <= {each.rpartition("-")[2] for each in names(study, method)}
    rates = study.first(method).records.filter(metric="rate/fc2", round=1)["value"]
    assert held.by_unit("rate")[1, 0] == pytest.approx(rates.mean())


def test_gates_have_densities_a_histogram_and_a_tree(study):
    assert names(study, "pfedgate") == ["density", "gates", "tree"]
    held = Records(study, study.first("pfedgate"))
    known, counts = gating_networks(held)
    assert set(known) == set(study.federation.seen)
    assert counts.shape == (len(study.federation), 10)
    with study.result("pfedgate") as result:
        state = result.store.clients([0], result.store.fact("selected"))[0]
    assert all(torch.equal(leaf, known[0][name]) for name, leaf in state["pfedgate.gate"].items())


def test_the_partition_of_units_is_read_from_the_state(study):
    assert names(study, "fedfac") == ["stable", "course", "communality", "factor_steps", "factor_converged"]
    held = Records(study, study.first("fedfac"))
    nu, shared = decisions.communalities(held)["fc1"]
    assert nu[shared].min() >= nu[~shared].max()
    recorded = study.first("fedfac").records.filter(metric="shared_units/fc1")["value"].to_list()
    assert shared.sum() in recorded


def test_unknown_records_are_drawn_as_they_are(study):
    held = Records(study, study.first("lgmix"))
    pictures = record_pictures(held, ["lambda_newest", "brand_new"])
    assert pictures[1].title == "Brand new"


# -- models ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(study):
    found = {}
    for method in ("fedavg", "local", "fedfac", "pfedgate"):
        with study.result(method) as result:
            found[method] = models.mean_distances(result), layer_similarity(result)
    return found


def test_one_model_for_all_is_at_no_distance_and_fully_alike(measured):
    distances, likeness = measured["fedavg"]
    assert distances == {"fc1": 0.0, "fc2": 0.0}
    assert all(value == pytest.approx(1) for value in likeness.values())


def test_local_models_are_measured_from_their_mean(measured):
    distances, likeness = measured["local"]
    assert all(0 < value < 2 for value in distances.values())
    assert all(0 < value < 1 for value in likeness.values())


def test_gates_count_in_how_personal_a_model_is(measured):
    distances, _ = measured["pfedgate"]
    assert all(value > 0.01 for value in distances.values())


def test_only_split_units_are_personal(measured):
    distances, _ = measured["fedfac"]
    assert distances["fc1"] > 0
    assert distances["fc2"] == 0
