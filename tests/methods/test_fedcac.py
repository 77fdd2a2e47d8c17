"""FedCAC: critical parameters are averaged among clients whose critical masks overlap, the others among all."""

from dataclasses import replace

import pytest
import torch

from idiolect.contract import Upload, methods
from idiolect.core import tree
from idiolect.engines.client_round import train
from idiolect.engines.slots import aggregate, first_server
from idiolect.methods.fedcac import critical, helpers, overlaps
from idiolect.testing import check_bad_options, check_wrappers, play, play_params, tiny_plan


def masks(*words: str) -> list[dict[str, torch.Tensor]]:
    """Masks of one tensor from strings of ones and zeros."""
    return [{"w": torch.tensor([digit == "1" for digit in word])} for word in words]


def test_the_hand_worked_example():
    """Masks 1100, 1100 and 0011: O_01 = 1, O_02 = O_12 = 0, mean 1/3, maximum 1.

    With beta = 2 the threshold in round 0 is 1/3 + 1/2 (1 - 1/3) = 2/3, so that clients 0 and 1 help each other. All
    parameters are 1, 3 and 8, the global mean 4: client 0 gets 2, 2, 4, 4 and client 2 gets 4, 4, 8, 8.
    """
    plan = tiny_plan("fedcac(beta=2)")
    ctx = replace(plan.server(0), clients=(0, 1, 2))
    critical = masks("1100", "1100", "0011")
    uploads = {
        i: Upload(
            {
                "params": {"w": torch.full((4,), value)},
                "buffers": {},
                "weight": {"samples": torch.tensor(5.0)},
                "fedcac.critical": critical[i],
            }
        )
        for i, value in enumerate([1.0, 3.0, 8.0])
    }
    before = {"params": {"w": torch.zeros(4)}, "buffers": {}}
    plan.tasks[0].net.params = before["params"]
    after = aggregate(ctx, before, uploads)
    download = plan.method.download(ctx, after, (0, 1, 2))
    assert download.of(0)["params"]["w"].tolist() == [2.0, 2.0, 4.0, 4.0]
    assert download.of(2)["params"]["w"].tolist() == [4.0, 4.0, 8.0, 8.0]
    assert plan.method.server_records(ctx, after) == {"helpers": pytest.approx(5 / 3)}


# -- overlaps and helpers ------------------------------------------------------------------------------


def test_the_overlap_is_the_papers():
    """1 - |M_i - M_j| / (2 |M_i|): masks 1100 and 0110 differ in two places, so 1 - 2/4."""
    found = overlaps(masks("1100", "0110", "0011", "1100"))
    assert found[0].tolist() == [1.0, 0.5, 0.0, 1.0]
    assert torch.equal(found, found.T)


def test_masks_without_critical_parameters_overlap_with_none():
    assert overlaps(masks("0000", "0000")).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_threshold_rises_from_the_mean_to_the_maximum():
    """Pairs overlap by 0.9, 0.5 and 0.1, mean 0.5. With beta = 4 the thresholds are 0.6, 0.7, 0.8, 0.9, then none."""
    overlap = torch.tensor([[1.0, 0.9, 0.5], [0.9, 1.0, 0.1], [0.5, 0.1, 1.0]], dtype=torch.float64)
    pair = [[True, True, False], [True, True, False], [False, False, True]]
    assert all(helpers(overlap, round, 4).tolist() == pair for round in range(4))
    assert helpers(overlap, 0, 1000).tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    near = overlap.clone()
    near[0, 2] = near[2, 0] = 0.62
    first, second = helpers(near, 0, 10), helpers(near, 4, 10)
    assert first[0, 2]
    assert not second[0, 2]


@pytest.mark.parametrize("round", [4, 5, 100])
def test_from_round_beta_on_a_client_is_alone(round):
    assert torch.equal(helpers(torch.ones(3, 3, dtype=torch.float64), round, 4), torch.eye(3, dtype=torch.bool))


def test_clients_that_are_all_alike_all_help():
    """Mean and maximum are equal, and round-off in the mean excludes nobody."""
    overlap = torch.full((7, 7), 1 / 3, dtype=torch.float64)
    assert helpers(overlap, 0, 4).all()


def test_a_client_without_critical_parameters_helps_itself():
    """Its mask overlaps with none, its own included."""
    overlap = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert helpers(overlap, 0, 2).tolist() == [[True, True, False], [True, True, False], [False, False, True]]


def test_a_single_client_helps_itself():
    assert helpers(torch.ones(1, 1, dtype=torch.float64), 0, 4).tolist() == [[True]]


# -- critical parameters -------------------------------------------------------------------------------


def test_exactly_the_share_of_each_tensor_is_critical():
    for size, share, count in ((10, 0.5, 5), (7, 0.5, 3), (10, 0.3, 3), (100, 0.29, 29), (4, 1.0, 4), (4, 0.0, 0)):
        assert int(critical(torch.randn(size), share).sum()) == count
        assert int(critical(torch.zeros(size), share).sum()) == count


def test_of_a_tensor_too_small_for_the_share_nothing_is_critical():
    assert not critical(torch.tensor([5.0]), 0.9).any()


def test_what_moved_and_is_large_is_critical():
    plan = tiny_plan("fedcac(tau=0.3)")
    server = first_server(plan.server(0))
    upload = train(plan, 0, 0, None, plan.method.download(plan.server(0), server, (0,)).of(0)).upload
    for name, mask in upload.slots["fedcac.critical"].items():
        trained = upload.slots["params"][name]
        sensitivity = ((trained - server["params"][name]) * trained).abs()
        assert mask.sum() == int(0.3 * mask.numel())
        if mask.any():
            assert sensitivity[mask].min() >= sensitivity[~mask].max()


# -- who gets what -------------------------------------------------------------------------------------


def test_the_download_is_the_helpers_mean_where_critical_and_the_global_model_elsewhere():
    plan = tiny_plan("fedcac")
    server = play(plan).server
    download = plan.method.download(plan.server(2), server, plan.data.seen)
    for i in plan.data.seen:
        chosen = server["fedcac.help"]["from"][i]
        assert chosen[i]
        models = [server[f"fedcac.model@{j}"] for j in plan.data.seen if chosen[j]]
        mean = tree.mean(models, [1.0] * len(models))
        for name, leaf in download.of(i)["params"].items():
            mask = server[f"fedcac.critical@{i}"][name]
            assert torch.equal(leaf[mask], mean[name][mask])
            assert torch.equal(leaf[~mask], server["params"][name][~mask])


def test_absent_clients_count_with_what_they_sent_last_and_others_get_the_global_model():
    plan = tiny_plan("fedcac", participation=0.4, rounds=2)
    server = play(plan).server
    took_part = {i for round in (0, 1) for i in plan.participants(round)}
    assert 0 < len(took_part) < 5
    assert server["fedcac.help"]["from"].shape == (len(took_part), len(took_part))
    download = plan.method.download(plan.server(1), server, plan.data.seen)
    for i in plan.data.seen:
        same = all(torch.equal(leaf, server["params"][n]) for n, leaf in download.of(i)["params"].items())
        assert same == (i not in took_part)


def test_coordinates_that_a_mask_leaves_out_keep_what_the_client_sent_before():
    plan = tiny_plan("fedcac")
    server = {**first_server(plan.server(0)), "fedcac.model@0": {"4.bias": torch.tensor([7.0, 8.0, 9.0])}}
    slots = {
        "params": {"4.bias": torch.tensor([1.0, 2.0, 3.0])},
        "buffers": {},
        "weight": {"samples": torch.tensor(1.0)},
        "fedcac.critical": {"4.bias": torch.tensor([True, True, True])},
    }
    upload = Upload(slots, {"params": {"4.bias": torch.tensor([True, False, True])}})
    after = aggregate(plan.server(0), server, {0: upload})
    assert after["fedcac.model@0"]["4.bias"].tolist() == [1.0, 8.0, 3.0]


def test_the_default_acts():
    own, plain = play_params(tiny_plan("fedcac")), play_params(tiny_plan("fedavg"))
    assert not torch.equal(own[0]["0.weight"], plain[0]["0.weight"])
    assert not torch.equal(own[0]["0.weight"], own[1]["0.weight"])


def test_an_unseen_client_gets_the_global_model():
    plan = tiny_plan("fedcac", unseen=1)
    server = play(plan).server
    sent = plan.method.download(plan.server(2), server, (5,)).of(5)
    assert all(torch.equal(leaf, server["params"][n]) for n, leaf in sent["params"].items())


def test_what_is_private_has_no_mask():
    plan = tiny_plan("fedcac", norm=True, norm_affine="local")
    server = first_server(plan.server(0))
    upload = train(plan, 0, 0, None, plan.method.download(plan.server(0), server, (0,)).of(0)).upload
    assert upload.slots["fedcac.critical"].keys() == upload.slots["params"].keys()
    assert not {"1.weight", "1.bias"} & set(upload.slots["fedcac.critical"])


def test_wrappers_wrap_it():
    check_wrappers("fedcac")


def test_bad_options_are_named():
    check_bad_options("fedcac", "tau=-0.1", "tau=1.1", "beta=-1", "beta=1.5")


def test_in_the_last_round_of_collaboration_the_most_alike_still_help_in_spite_of_round_off():
    """The threshold is then the largest overlap, computed as mean + 1 (maximum - mean)."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        overlap = torch.rand(4, 4, generator=draw, dtype=torch.float64)
        apart = overlap.masked_fill(torch.eye(4, dtype=torch.bool), 0.0)
        assert helpers(overlap, 9, 10).view(-1)[apart.argmax()]


def test_by_default_a_client_is_alone_after_a_fifth_of_the_runs_rounds():
    """Of 40 rounds 8; the paper's number is 100 whatever the rounds."""
    ctx = tiny_plan("fedcac", rounds=40).server(0)
    assert methods.build("fedcac").last_round(ctx) == 8
    assert methods.build("fedcac(until=0.5)").last_round(ctx) == 20
    assert methods.build("fedcac(preset=paper)").last_round(ctx) == 100
