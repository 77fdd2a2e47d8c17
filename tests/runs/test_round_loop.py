"""The round loop."""

from idiolect.testing import play, tiny_plan


def test_a_client_that_had_nothing_to_train_on_is_scored_as_the_newcomer_it_still_is():
    played = play(tiny_plan("pfedgate", rounds=1))
    assert played.clients[4] is None, "it has one sample, and two are needed"
    recorded = {row[1] for row in played.rows if row[3] == "state"}
    assert recorded == {0, 1, 2, 3}
