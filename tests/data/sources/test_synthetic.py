"""The papers' simulations have the structure that the papers describe."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idiolect.core.errors import DataError
from idiolect.data import Pool, load
from idiolect.data.sources import fedfac_simulation, fedlag_rectangles, sources


def linear_accuracy(x: torch.Tensor, y: torch.Tensor, weight: list[float], shift: float) -> float:
    right = ((x @ torch.tensor(weight) > shift).long() == y).float().mean()
    return float(max(right, 1 - right))


# -- fedfac ------------------------------------------------------------------------------------------


def test_the_simulation_has_the_papers_sizes():
    federation, truth = fedfac_simulation(clients=4, share=0.3, covariate_share=0.7)
    client = federation.clients[0]
    assert (len(client.train), len(client.val), len(client.test)) == (200, 100, 100)
    assert (federation.input_shape, federation.classes, federation.partition) == ((100,), 2, "given")
    assert truth.shared.tolist() == [False] * 140 + [True] * 60
    assert truth.shared_inputs.tolist() == [False] * 30 + [True] * 70
    assert truth.weight.shape == (4, 200, 100)
    assert truth.head.shape == (200,)


def test_shared_units_are_the_same_everywhere_and_weigh_shared_covariates():
    _, truth = fedfac_simulation(clients=3)
    shared, own = truth.weight[:, truth.shared], truth.weight[:, ~truth.shared]
    assert torch.equal(shared[0], shared[1])
    assert not torch.equal(own[0], own[1])
    assert float(shared[..., truth.shared_inputs].abs().max()) == pytest.approx(1.0, abs=0.01)
    assert float(shared[..., ~truth.shared_inputs].abs().max()) <= 0.1
    assert float(own[..., truth.shared_inputs].abs().max()) <= 0.1
    assert float(own[0][:, ~truth.shared_inputs].std(0).mean()) == pytest.approx(1.0, abs=0.1)


def test_personal_covariates_and_personal_weights_have_the_clients_own_mean():
    federation, truth = fedfac_simulation(clients=2, train=2000)
    x = federation.clients[0].split("train")[0]
    weights = truth.weight[0][~truth.shared][:, ~truth.shared_inputs]
    mean = x[:, ~truth.shared_inputs].mean(0)
    assert float(torch.corrcoef(torch.stack([mean, weights.mean(0)]))[0, 1]) > 0.95
    assert float(x[:, truth.shared_inputs].mean(0).abs().max()) < 0.12


def test_personal_covariates_are_correlated_by_distance():
    federation, truth = fedfac_simulation(clients=1, train=5000)
    x = federation.clients[0].split("train")[0]
    covariance = np.cov(x[:, ~truth.shared_inputs].T)
    for distance in range(4):
        assert np.diagonal(covariance, distance).mean() == pytest.approx(0.5**distance, abs=0.03)
    assert np.diagonal(np.cov(x[:, truth.shared_inputs].T), 1).mean() == pytest.approx(0.0, abs=0.02)


def test_labels_follow_from_the_true_network():
    federation, truth = fedfac_simulation(clients=2, noise=0.0)
    for client, weight in zip(federation.clients, truth.weight, strict=True):
        x, y = client.split("test")
        output = torch.relu(x @ weight.T) @ truth.head
        clear = output.abs() > 1e-2
        assert torch.equal((output > 0).long()[clear], y[clear])


def test_a_client_does_not_depend_on_the_number_of_clients():
    few, many = fedfac_simulation(clients=2)[0], fedfac_simulation(clients=5)[0]
    assert torch.equal(few.clients[1].x, many.clients[1].x)


def test_centred_output_weights_let_both_labels_occur():
    for seed in range(3):
        federation, truth = fedfac_simulation(clients=10, seed=seed, centred=True)
        assert float(truth.head[truth.shared].sum()) == pytest.approx(0.0, abs=1e-4)
        positive = federation.label_counts()[:, 1].sum() / federation.label_counts().sum()
        assert 0.25 < float(positive) < 0.75


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_or_nothing_may_be_shared(share):
    _, truth = fedfac_simulation(clients=1, share=share, covariate_share=share, centred=True)
    assert truth.shared.all() == bool(share)
    assert truth.weight.isfinite().all()


# -- rectangles ----------------------------------------------------------------------------------------


def test_the_common_boundary_is_level_and_the_clients_own_are_upright():
    federation = fedlag_rectangles(points=1000)
    data = [(client.x, client.y) for client in federation.clients]
    everyone = [torch.cat(each) for each in zip(*data, strict=True)]
    assert linear_accuracy(*everyone, [0.0, 1.0], 0.0) == pytest.approx(0.9, abs=0.02)
    assert linear_accuracy(*everyone, [1.0, 0.0], 0.0) < 0.6
    for (x, y), boundary in zip(data, (-6.0, -2.0, 6.0, 2.0), strict=True):
        assert linear_accuracy(x, y, [1.0, 0.0], boundary) == 1.0


def gradients(federation) -> torch.Tensor:
    """The gradients of logistic regression at zero, one row per client, of the balanced data."""
    rows = []
    for client in federation.clients:
        signed = 0.5 - client.y.float()
        rows.append(torch.cat([(signed[:, None] * client.x).mean(0), signed.mean()[None]]))
    return torch.nn.functional.normalize(torch.stack(rows))


def test_clients_1_and_3_and_2_and_4_are_in_conflict_unless_iid():
    skewed = gradients(fedlag_rectangles(points=400))
    assert float(skewed[0] @ skewed[2]) < 0
    assert float(skewed[1] @ skewed[3]) < 0
    alike = gradients(fedlag_rectangles(points=400, iid=True))
    assert float((alike @ alike.T).min()) > 0


# -- as data sources -------------------------------------------------------------------------------------


def test_simulations_are_sources_that_come_as_clients():
    assert len(load("rectangles")) == 4
    assert load("rectangles(iid=true)", partition="natural").name == "rectangles"
    federation = load("fedfac-simulation(share=0.3, centred=true)", clients=3, unseen=0.3)
    assert (len(federation), len(federation.unseen)) == (3, 1)
    with pytest.raises(DataError, match="comes as clients, not as one pool"):
        sources.build("rectangles").load()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rectangles", {"partition": "iid"}, "cannot deal it anew; leave the partition out"),
        ("rectangles", {"clients": 5}, "has four clients, not 5"),
        ("fedfac-simulation", {"partition": "shards"}, "cannot deal it anew"),
        ("fedfac-simulation", {"split": (0.8, 0.1, 0.1)}, "leave the split out"),
    ],
)
def test_what_a_simulation_fixes_cannot_be_asked_for(name, options, message):
    with pytest.raises(DataError, match=message):
        load(name, **options)


def test_a_pool_of_numbers_is_dealt_evenly():
    pool = Pool(torch.rand(60, 2), torch.rand(60, 3), None, None, "numbers")
    assert (pool.outputs, len(pool.federation()), pool.federation().partition) == (3, 20, "iid")
