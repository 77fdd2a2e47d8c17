"""Private layers: what an unseen client trains, and for how long."""

import pytest

from idiolect.contract.parts.private_layers import all_but_last, in_turn, shared_names
from idiolect.testing import check_bad_options, tiny_plan

BODY, HEAD = frozenset({"0.weight", "0.bias", "2.weight", "2.bias"}), frozenset({"4.weight", "4.bias"})


def onboarding(method: str):
    plan = tiny_plan(method, unseen=1)
    return [(phase.epochs, phase.part) for phase in plan.method.onboard(plan.context(5, 0))]


@pytest.mark.parametrize("method", ["fedper", "fedrep", "fedalt", "fedsim", "fedas", "fedcp", "gpfl"])
def test_an_unseen_client_trains_its_private_layers_for_ten_passes_or_as_many_as_asked_for(method):
    """They start from initial values, for which one pass is too few."""
    head = frozenset({"4.weight", "4.bias"})
    assert onboarding(method) == [(10, head)]
    assert onboarding(f"{method}(onboard_epochs=3)") == [(3, head)]
    check_bad_options(method, "onboard_epochs=-1")


@pytest.mark.parametrize("method", ["fedpac", "fedrod"])
def test_a_head_that_starts_from_what_others_learnt_is_trained_for_ten_passes_too(method):
    assert [epochs for epochs, _ in onboarding(method)] == [10]
    assert [epochs for epochs, _ in onboarding(f"{method}(onboard_epochs=3)")] == [3]


def test_where_nothing_is_private_an_unseen_client_trains_as_usual():
    assert onboarding("fedper(layers=0)") == onboarding("fedavg")


def test_fine_tuning_keeps_the_onboarding_of_the_method_inside():
    assert onboarding("finetune(fedper)") == onboarding("fedper")


def test_what_is_not_private_is_shared():
    plan = tiny_plan("fedper")
    assert shared_names(plan.method, plan.tasks[0]) == BODY


def test_all_but_the_last_layers_are_counted_with_their_buffers():
    task = tiny_plan("fedper", norm=True).tasks[0]
    names = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert all_but_last(task, 1) == {*names, "3.weight", "3.bias"}
    assert all_but_last(task, 2) == names


def test_what_is_private_is_trained_first_and_the_rest_after_it_a_side_without_parameters_not_at_all():
    plan = tiny_plan("fedper")
    task, step = plan.tasks[0], plan.method.step

    def phases(private):
        return [(p.name, p.part, p.epochs, p.lr) for p in in_turn(step, task, private, 3, 2, own_lr=0.5)]

    own, shared = ("own", HEAD, 3, 0.5), ("shared", BODY, 2, None)
    assert phases(HEAD) == [own, shared]
    assert phases(frozenset()) == [("shared", BODY | HEAD, 2, None)]
    assert phases(BODY | HEAD) == [("own", BODY | HEAD, 3, 0.5)]
    assert phases(frozenset({"1.running_mean"})) == [("shared", BODY | HEAD, 2, None)]
