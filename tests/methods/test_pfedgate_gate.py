"""pFedGate's gating network: its norms against PyTorch's, weights of samples, and what its options change."""

import pytest
import torch
from torch import nn

from idiolect.core.errors import ModelError
from idiolect.methods.pfedgate.gate import BatchNorm, Gate, SwitchableNorm

ONES = torch.ones(6)


def only(norm: SwitchableNorm, kind: int) -> SwitchableNorm:
    """The norm with all weight on one kind of statistics."""
    with torch.no_grad():
        norm.mean_logits.copy_(torch.full_like(norm.mean_logits, -100.0).index_fill(0, torch.tensor(kind), 100.0))
        norm.var_logits.copy_(norm.mean_logits)
    return norm


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_is_pytorchs_where_all_samples_count(train):
    ours, theirs = BatchNorm(3), nn.BatchNorm1d(3)
    for _ in range(3):
        x = torch.randn(6, 3) * 2 + 1
        ours.train(), theirs.train()
        assert torch.allclose(ours(x, ONES), theirs(x), atol=1e-5)
    assert torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var, atol=1e-6)
    ours.train(train), theirs.train(train)
    assert torch.allclose(ours(x, ONES), theirs(x), atol=1e-5)


def test_the_three_statistics_of_the_switchable_norm_are_pytorchs_norms():
    x = torch.randn(6, 4, 5)
    instance, layer, batch = nn.InstanceNorm1d(4), nn.LayerNorm([4, 5], elementwise_affine=False), nn.BatchNorm1d(4)
    for kind, theirs in enumerate((instance, layer, batch)):
        assert torch.allclose(only(SwitchableNorm(4, positions=5), kind)(x, ONES), theirs(x), atol=1e-4)


def test_means_and_variances_are_weighed_apart():
    """The mean of the instance, the variance of the batch."""
    x, norm = torch.randn(6, 4, 5), only(SwitchableNorm(4, positions=5), 0)
    with torch.no_grad():
        norm.var_logits.copy_(torch.tensor([-100.0, -100.0, 100.0]))
    spread = (x.var((0, 2), correction=0) + 1e-5).sqrt()
    assert torch.allclose(norm(x, ONES), (x - x.mean(2, keepdim=True)) / spread[:, None], atol=1e-5)


def test_it_starts_as_the_equal_mixture_of_the_three():
    """Means 1 (instance), 3 (layer), 5 (batch), variances 0, 4 and 16: centre 3, spread 20/3."""
    x = torch.tensor([[[1.0, 1.0], [5.0, 5.0]], [[9.0, 9.0], [9.0, 9.0]]])
    norm = SwitchableNorm(2, positions=2)
    found = norm(x, torch.ones(2))[0, 0]
    expected = (1.0 - 3.0) / (20 / 3 + 1e-5) ** 0.5
    assert torch.allclose(found, torch.full((2,), expected))


def test_vectors_have_layer_and_batch_statistics_only():
    x = torch.randn(6, 4, 1)
    norm = SwitchableNorm(4, positions=1)
    assert len(norm.mean_logits) == 2
    layer, batch = nn.LayerNorm(4, elementwise_affine=False), nn.BatchNorm1d(4)
    assert torch.allclose(only(norm, 0)(x, ONES)[..., 0], layer(x[..., 0]), atol=1e-4)
    assert torch.allclose(only(norm, 1)(x, ONES)[..., 0], batch(x[..., 0]), atol=1e-4)


def test_in_evaluation_the_batch_part_uses_running_statistics_that_start_at_zero():
    norm = only(SwitchableNorm(2, positions=3), 2)
    assert not norm.running_mean.any()
    assert not norm.running_var.any()
    x = torch.randn(6, 2, 3) + 4
    norm(x, ONES)
    assert torch.allclose(norm.running_mean, 0.1 * x.mean((0, 2)), atol=1e-6)
    assert torch.allclose(norm.running_var, 0.1 * x.var((0, 2), correction=0), atol=1e-6)
    norm.eval()
    before = norm.running_mean.clone()
    alone, together = norm(x[:1], torch.ones(1)), norm(x, ONES)
    assert torch.allclose(alone, together[:1])
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize("shape", [(3, 8, 8), (7,), (2, 5), ()])
def test_samples_of_weight_zero_change_nothing(shape):
    x = torch.randn(5, *shape)
    gate, other = Gate(shape, gates=4), Gate(shape, gates=4)
    other.load_state_dict(gate.state_dict())
    padded = torch.cat([x, 100 + torch.randn(2, *shape)])
    found = gate((padded, torch.tensor([1.0] * 5 + [0.0] * 2)))
    assert torch.allclose(found[:5], other((x, torch.ones(5))), atol=1e-5)
    for name, leaf in gate.state_dict().items():
        assert torch.allclose(leaf, other.state_dict()[name], atol=1e-5), name


def test_two_paths_are_twice_as_large_as_the_shared_one():
    two, one = Gate((3, 8, 8), gates=5), Gate((3, 8, 8), gates=5, shared_path=True)
    assert two.paths.weight.numel() == 2 * 3 * 64 * 5 == 2 * one.paths.weight.numel()
    x = (torch.randn(4, 3, 8, 8), torch.ones(4))
    assert two(x).shape == (4, 2, 5)
    assert one(x).shape == (4, 1, 5)


@pytest.mark.parametrize("post_norm", [True, False])
def test_the_bias_opens_the_scales_and_leaves_the_scores(post_norm):
    gate = Gate((10,), gates=8, post_norm=post_norm, bias=6.0)
    scale, score = gate((torch.randn(64, 10), torch.ones(64))).mean(0)
    assert float(scale.min().detach()) > 0.97
    assert 0.2 < float(score.min().detach()) < float(score.max().detach()) < 0.8


def test_norms_can_be_left_out():
    gate = Gate((10,), gates=8, pre_norm=False, post_norm=False)
    assert [name for name, _ in gate.named_parameters()] == ["paths.weight", "paths.bias"]
    x = torch.randn(3, 10)
    expected = nn.functional.linear(x, gate.paths.weight, gate.paths.bias).sigmoid()
    assert torch.equal(gate((x, torch.ones(3))).flatten(1), expected)


@pytest.mark.parametrize(("shape", "pool"), [((10,), 2), ((3, 4, 4), 5), ((), 2)])
def test_pooling_that_does_not_fit_is_refused(shape, pool):
    with pytest.raises(ModelError, match=f"gate_pool={pool} averages squares of positions"):
        Gate(shape, gates=2, pool=pool)
