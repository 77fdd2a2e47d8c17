"""The round loop."""

import pytest

from idiolect import run
from idiolect.runs.settings import Config
from idiolect.testing import play, tiny_plan


def test_a_client_that_had_nothing_to_train_on_is_scored_as_the_newcomer_it_still_is():
    played = play(tiny_plan("pfedgate", rounds=1))
    assert played.clients[4] is None, "it has one sample, and two are needed"
    recorded = {row[1] for row in played.rows if row[3] == "state"}
    assert recorded == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sample_of_clients_is_evaluated_the_same_in_every_round_and_nothing_else_changes(seed):
    few, all_of_them = (
        play(tiny_plan("ditto", unseen=3, rounds=2, epochs=1, seed=seed, eval_clients=count)) for count in (2, None)
    )
    scored = [{row[1] for row in few.rows if row[:1] == (round,) and row[3] == "personal"} for round in (0, 1)]
    assert scored[0] == scored[1]
    assert [len(scored[0] & set(cohort)) for cohort in (range(5), range(5, 8))] == [2, 2]
    assert set(few.rows) < set(all_of_them.rows)


def test_the_summary_says_how_many_clients_are_evaluated_and_the_hash_of_settings_is_as_before():
    result = run("local", "digits", clients=3, rounds=1, model="linear", eval_clients=2, engine="loop")
    assert result.summary["evaluated_clients"] == 2
    assert result.summary["accuracy"]["selected"]["clients"] == 2
    assert Config().hash == "5c22d1298460"
