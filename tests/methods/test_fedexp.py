"""FedExP: the server extrapolates by a rate that it computes from the updates, and predicts with an average."""

import pytest
import torch

from idiolect import Federation, run
from idiolect.contract import Upload
from idiolect.core import tree
from idiolect.engines import Loop, Plan
from idiolect.engines.slots import aggregate, first_server
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.testing import check_bad_options, check_wrappers, play, play_params, tiny_plan
from idiolect.testing.scalar import download_of, make_upload, train_client


def sent(*values: float, samples: float = 1.0) -> Upload:
    return make_upload({"params": {"w": torch.tensor(values)}}, samples)


def server_at(plan: Plan, *values: float) -> dict:
    return {**first_server(plan.server(0)), "params": {"w": torch.tensor(values)}, "buffers": {}}


def rate_of(plan: Plan, uploads: dict) -> float:
    """The server's learning rate after uploads, from (0, 0)."""
    server = aggregate(plan.server(0), server_at(plan, 0.0, 0.0), uploads)
    return plan.method.server_records(plan.server(0), server)["server_rate"]


@pytest.mark.parametrize(
    ("second", "rate", "after", "average"),
    [((1.0, -3.0), 1.0, (2.0, -1.0), (1.0, -0.5)), ((-1.0, -3.0), 2.0, (2.0, -2.0), (1.0, -1.0))],
)
def test_the_hand_worked_example(second, rate, after, average):
    """Updates (3, 1) and (1, -3): squared lengths 10 and 10, mean (2, -1) of squared length 5. With epsilon = 0.5 the
    ratio is 20 / (2 * 2 * 5.5) = 0.909, and the rate 1. Updates (3, 1) and (-1, -3): mean (1, -1) of squared length
    2, rate 20 / (2 * 2 * 2.5) = 2, move (2, -2). From w = 0 the average of the last two iterates is half the move.
    """
    plan = tiny_plan("fedexp(eps=0.5)")
    server = aggregate(plan.server(0), server_at(plan, 0.0, 0.0), {0: sent(3.0, 1.0), 1: sent(*second)})
    assert plan.method.server_records(plan.server(0), server) == {"server_rate": pytest.approx(rate)}
    assert server["params"]["w"].tolist() == pytest.approx(after)
    assert download_of(plan, server=server)["params"]["w"].tolist() == pytest.approx(average)
    assert download_of(plan, round=1, server=server)["params"]["w"].tolist() == pytest.approx(after)


def test_epsilon_is_not_multiplied_by_the_number_of_participants():
    """Four updates of squared length 4 and mean zero: 16 / (2 * 4 * eps) with eps = 0.25 is 8; eps times 4 gives 2."""
    plan = tiny_plan("fedexp(eps=0.25)")
    uploads = {i: sent(*v) for i, v in enumerate([(2.0, 0.0), (-2.0, 0.0), (0.0, 2.0), (0.0, -2.0)])}
    assert rate_of(plan, uploads) == pytest.approx(8.0)


def test_samples_weigh_as_the_run_says_or_alike_as_in_the_paper():
    uploads = {0: sent(1.0, 0.0, samples=3.0), 1: sent(0.0, 1.0, samples=1.0)}
    for method, expected in (("fedexp(eps=1e9, preset=paper)", [0.5, 0.5]), ("fedexp(eps=1e9)", [0.75, 0.25])):
        plan = tiny_plan(method)
        after = aggregate(plan.server(0), server_at(plan, 0.0, 0.0), uploads)
        assert after["params"]["w"].tolist() == pytest.approx(expected)
    plan = tiny_plan("fedexp(eps=0.1)")
    ratio = 1.0 / (2 * (0.75**2 + 0.25**2 + 0.1))
    assert rate_of(plan, uploads) == pytest.approx(max(1.0, ratio))


def test_a_large_epsilon_without_the_averaging_is_in_the_paper_fedavg_with_equal_weights_to_the_bit():
    extrapolated, plain = (
        play_params(tiny_plan("fedexp(preset=paper, eps=inf, average_last=false)")),
        play_params(tiny_plan("fedavg", weighting="uniform")),
    )
    assert all(torch.equal(leaf, plain[i][n]) for i, model in extrapolated.items() for n, leaf in model.items())


def test_the_default_extrapolates():
    changed, plain = play(tiny_plan("fedexp")), play(tiny_plan("fedavg", weighting="uniform"))
    assert any(not torch.equal(leaf, plain.server["params"][n]) for n, leaf in changed.server["params"].items())
    assert max(row[6] for row in changed.rows if row[5] == "server_rate") > 1.0


def test_clients_train_on_the_iterate_and_predict_with_the_average():
    plan = tiny_plan("fedexp")
    store = Store(None)
    experiment, server = RoundLoop(plan, Loop(plan), store), first_server(plan.server(0))
    start = server["params"]
    for round in range(2):
        server = experiment.do_round(round, server, lambda _: None)
        before, start = start, server["params"]
        training = download_of(plan, round=round + 1, server=server)["params"]
        predicting = download_of(plan, round=round, server=server)["params"]
        for name, leaf in start.items():
            assert torch.equal(training[name], leaf)
            assert torch.allclose(predicting[name], (leaf + before[name]) / 2)


def test_a_result_gives_the_averaged_model():
    one = (torch.ones(4, 1), torch.tensor([0, 1, 0, 1]))
    data = Federation.from_clients([{"train": one, "val": one, "test": one}] * 2)
    result = run("fedexp", data, model=torch.nn.Linear(1, 2), rounds=1, lr=0.5)
    start, end = result.plan.tasks[0].net.params["weight"], result.store.server()["params"]["weight"]
    assert torch.allclose(result.model(0).weight, (start + end) / 2)


def test_running_statistics_are_averaged_and_never_extrapolated():
    plan = tiny_plan("fedexp")
    uploads = {i: Upload({**sent(v, 0.0).slots, "buffers": {"b": torch.tensor(v)}}) for i, v in enumerate([5.0, -3.0])}
    server = {**server_at(plan, 0.0, 0.0), "buffers": {"b": torch.tensor(0.0)}}
    after = aggregate(plan.server(0), server, uploads)
    assert after["fedexp.last"]["rate"] > 5
    assert after["buffers"]["b"].item() == 1.0


def test_what_a_client_did_not_send_is_no_update():
    """Of (3, 100) only the first coordinate is sent: the squared lengths are 9 and 2, the mean is (2, 1)."""
    plan = tiny_plan("fedexp(eps=1e-9)")
    masked = Upload(sent(3.0, 100.0).slots, {"params": {"w": torch.tensor([True, False])}})
    found = rate_of(plan, {0: masked, 1: sent(1.0, 1.0)})
    assert found == pytest.approx(max(1.0, 11 / (2 * 2 * 5)))
    opposed = Upload(sent(-3.0, 100.0).slots, {"params": {"w": torch.tensor([True, False])}})
    found = rate_of(plan, {0: opposed, 1: sent(2.9, 0.0)})
    assert found == pytest.approx((9 + 2.9**2) / (2 * 2 * 0.05**2), rel=1e-4)


def test_a_round_in_which_nobody_moves_leaves_the_model_where_it_is():
    plan = tiny_plan("fedexp")
    server = server_at(plan, 1.0, 2.0)
    after = aggregate(plan.server(0), server, {0: sent(1.0, 2.0), 1: sent(1.0, 2.0)})
    assert after["params"]["w"].tolist() == [1.0, 2.0]
    assert after["fedexp.last"]["rate"] == 1.0


def test_local_training_is_fedavgs():
    own, plain = (train_client(tiny_plan(method)).upload.slots["params"] for method in ("fedexp", "fedavg"))
    assert all(torch.equal(leaf, plain[n]) for n, leaf in own.items())


def test_wrappers_wrap_it():
    check_wrappers("fedexp")


def test_unseen_clients_start_from_the_average():
    plan = tiny_plan("fedexp", unseen=1)
    start = first_server(plan.server(0))
    moved = {n: leaf + 1.0 for n, leaf in start["params"].items()}
    server = aggregate(plan.server(0), start, {0: make_upload({"params": moved})})
    guest = download_of(plan, 5, server=server)["params"]
    assert all(torch.allclose(guest[n], leaf + 0.5) for n, leaf in start["params"].items())
    assert tree.norm(tree.sub(server["params"], moved)).item() == pytest.approx(0.0, abs=1e-5)


def test_bad_options_are_named():
    check_bad_options("fedexp", "eps=0", "eps=-1", "eps=nan", "average_last=2")
