"""Tangent kernels, and the rates and bounds of LG-Mix's and FedSplit's theories."""

import math

import pytest
import torch
from torch import nn

from idiolect import analysis
from idiolect.core.errors import InputError, OptionError

NOISE = torch.Generator().manual_seed(0)


def two_layers(width=16):
    net = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 1, bias=False)).double()
    return net, {n: p.detach() for n, p in net.named_parameters()}


def outputs_of(net):
    return lambda params, x: torch.func.functional_call(net, params, (x,)).flatten()


def test_a_gradient_step_moves_the_errors_as_equation_3_says():
    net, params = two_layers()
    x, y = torch.randn(6, 5, generator=NOISE).double(), torch.randn(6, generator=NOISE).double()
    function = outputs_of(net)
    error = y - function(params, x)
    grads = torch.func.grad(lambda p: 0.5 * (y - function(p, x)).square().sum())(params)
    lr = 1e-5
    after = y - function({n: leaf - lr * grads[n] for n, leaf in params.items()}, x)
    expected = analysis.decay(analysis.gram_matrix(function, params, x), error, lr)
    assert torch.allclose(after, expected, atol=1e-7)
    assert (after - error).abs().max() > 1e-5


def test_proposition_1_is_the_mean_over_directions_of_the_error():
    """Hand-worked: H = diag(1, 3), errors e1 and e2 of length 1: squares (1 - lr)^2 and (1 - 3 lr)^2, to first order
    on average 1 - 4 lr = 1 - 2 lr * 4 / 2."""
    gram, lr = torch.diag(torch.tensor([1.0, 3.0])), 1e-4
    squares = [float(analysis.decay(gram, error, lr).square().sum()) for error in torch.eye(2)]
    assert sum(squares) / 2 == pytest.approx(analysis.decay_rate(gram, lr), abs=1e-6)
    assert analysis.decay_rate(gram, 0.1) == pytest.approx(0.6)


def test_the_features_trace_is_the_heads_share_of_the_kernel_and_follows_the_whole():
    """Of a linear head without bias the two are equal; over models that differ in scale they rank alike."""
    net, params = two_layers()
    x = torch.randn(8, 5, generator=NOISE).double()
    function, features, kernels = outputs_of(net), [], []
    for scale in (0.5, 1.0, 2.0, 4.0):
        body = {n: leaf * scale if n.startswith("0.") else leaf for n, leaf in params.items()}
        hidden = torch.relu(x @ body["0.weight"].T + body["0.bias"])
        head = analysis.gram_matrix(lambda p, x, b=body: function({**b, **p}, x), {"2.weight": body["2.weight"]}, x)
        features.append(float(analysis.trace(hidden)))
        kernels.append(float(analysis.gram_matrix(function, body, x).diagonal().sum()))
        assert float(head.diagonal().sum()) == pytest.approx(features[-1], rel=1e-6)
        assert kernels[-1] > features[-1]
    assert kernels == sorted(kernels)
    assert features == sorted(features)


def test_the_closed_form_kernel_is_the_mean_over_random_units():
    x = torch.randn(4, 3, generator=NOISE).double()
    units = torch.randn(200_000, 3, generator=NOISE).double()
    active = (x @ units.T >= 0).double()
    drawn = (x @ x.T) * (active @ active.T) / len(units)
    assert torch.allclose(analysis.relu_kernel(x), drawn, atol=0.02)


def test_the_personal_kernel_has_no_entry_between_clients_and_no_smaller_eigenvalue():
    x, clients = torch.randn(6, 4, generator=NOISE), [0, 0, 1, 1, 2, 2]
    whole, own = analysis.relu_kernel(x), analysis.relu_kernel(x, clients)
    assert not own[0, 2:].any()
    assert torch.equal(own[2:4, 2:4], whole[2:4, 2:4])
    rate = analysis.split_rate(x, clients, lr=0.01, steps=5)
    assert rate.personal >= rate.shared > 0
    assert rate.factor < rate.fedavg < 1


def test_the_hand_worked_rate_and_bound_of_fedsplit():
    """Two unit vectors at right angles, one client each: both kernels are I / 2, C = 2, n = 1. The rate is
    1 - (0.1 / 2 * 0.5 + 0.1 * 0.5) / 2 = 0.9625, the bound 2 sqrt(2 * y'y) = 2 sqrt(2)."""
    rate = analysis.split_rate(torch.eye(2), [0, 1], lr=0.1, steps=1)
    assert rate == pytest.approx((0.9625, 0.9875, 0.5, 0.5))
    assert analysis.split_bound(torch.eye(2), torch.tensor([1.0, 0.0]), [0, 1]) == pytest.approx(2 * math.sqrt(2))


def test_the_hand_worked_error_of_lgmix_and_that_ratio_1_has_the_lowest_bound():
    """H = I, errors 1 and 1, N = 2, zeta = 0.4 / 4: 2 - 0.1 (0.5 * 2) - 0.1 * 0.5 * 2 = 1.8."""
    assert analysis.mixing_error(torch.eye(2), torch.ones(2), [0, 1], [0.5, 0.5], 0.4, 1) == pytest.approx(1.8)
    gram = analysis.relu_kernel(torch.randn(6, 8, generator=NOISE))
    bounds = [analysis.mixing_error(gram, torch.ones(6), [0, 0, 1, 1, 2, 2], [r] * 3, 0.1, 4) for r in (0.0, 0.5, 1.0)]
    assert bounds[2] <= bounds[1] <= bounds[0] < 6


def test_the_hand_worked_bounds_of_lgmix():
    """H = I, y = (1, 1), n = N = 2, pace 1. Ratio 1: A = I and the bound is sqrt(2 / 2 * 2). Ratio 0: A = I / 2 and
    A^-1 y = (2, 2): sqrt(8). The first client's at ratio 1 has G = H_c: sqrt(2 / 2 * 1)."""
    args = (torch.eye(2), torch.ones(2), [0, 1])
    assert analysis.mixing_bound(*args, 1.0, 1.0, 1) == pytest.approx(math.sqrt(2))
    assert analysis.mixing_bound(*args, 0.0, 1.0, 1) == pytest.approx(math.sqrt(8))
    assert analysis.mixing_bound(*args, 1.0, 1.0, 1, client=0) == pytest.approx(1.0)
    assert analysis.mixing_bound(*args, 1.0, 0.1, 1) == pytest.approx(10 * math.sqrt(2))  # which no bound can mean


def test_the_hand_worked_bound_of_one_client_between_shared_and_local():
    """H has 1 on the diagonal and 1/2 beside it, y = (1, 1), N = 2, pace 0.5 * 4 = 2, ratio 1/2: A = H / 2 + I has row
    sums 7/4, so A^-1 y = 4/7 (1, 1); G_c = H / 4 + H_c + its row of H sums to 3/4 + 1 + 3/2 = 13/4."""
    bound = analysis.mixing_bound(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.ones(2), [0, 1], 0.5, 0.5, 4, client=0)
    assert bound == pytest.approx(math.sqrt(13 / 4) * 4 / 7)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 0)])
def test_a_kernel_has_one_row_and_one_column_per_sample(shape):
    with pytest.raises(InputError, match=r"has shape .*, but one row and one column per sample are needed"):
        analysis.decay_rate(torch.ones(shape), 0.1)


def test_the_servers_learning_rate_in_the_bounds_of_lgmix():
    """H = I, y = (1, 1), N = 2, ratio 1/2, eta_g = 2: A = (1/2 * 2 / 2 + 1/2) I = I, and the bound of the mean is
    sqrt(2 / 2 * 2). G of the first client is (1/2)^2 I, plus 1/4 and 1/4 * 2 on its own entry: 1 + 1/4 in all, so
    sqrt(1.25). With eta_g = 1, A = 3/4 I: sqrt(2) * 4 / 3."""
    args = (torch.eye(2), torch.ones(2), [0, 1], 0.5, 1.0, 1)
    assert analysis.mixing_bound(*args, server_lr=2.0) == pytest.approx(math.sqrt(2))
    assert analysis.mixing_bound(*args, client=0, server_lr=2.0) == pytest.approx(math.sqrt(1.25))
    assert analysis.mixing_bound(*args) == pytest.approx(math.sqrt(2) * 4 / 3)


def test_the_gram_matrix_of_two_layers_is_the_papers():
    """Section 3.2: H_ij = 1/m sum_r x_i'x_j [w_r'x_i >= 0, w_r'x_j >= 0] for f = 1/sqrt(m) sum_r a_r relu(w_r'x), a_r
    either -1 or 1; its expectation over w is the closed form of infinite width."""
    x, units = torch.randn(5, 3, generator=NOISE).double(), torch.randn(4000, 3, generator=NOISE).double()
    signs = torch.sign(torch.randn(4000, generator=NOISE).double())
    gram = analysis.gram_matrix(lambda p, x: torch.relu(x @ p["w"].T) @ signs / 4000**0.5, {"w": units}, x)
    active = (x @ units.T >= 0).double()
    assert torch.allclose(gram, (x @ x.T) * (active @ active.T) / 4000)
    assert torch.allclose(gram, analysis.relu_kernel(x), atol=0.1)


def test_equation_4_and_equation_6_are_one_for_the_parameters_of_a_linear_head():
    """The features of norm 2 and 1 give 4/5 either way; the whole kernel, body included, another ratio."""
    net, params = two_layers()
    other = {n: leaf * 0.5 if n.startswith("0.") else leaf for n, leaf in params.items()}
    x, function = torch.randn(8, 5, generator=NOISE).double(), outputs_of(net)
    hidden = [torch.relu(x @ p["0.weight"].T + p["0.bias"]) for p in (params, other)]
    by_features = float(analysis.mixing_ratio(*hidden))
    assert by_features == pytest.approx(0.8)
    whole = float(analysis.kernel_ratio(function, params, other, x))
    assert whole == pytest.approx(
        float(analysis.gram_matrix(function, params, x).trace())
        / sum(float(analysis.gram_matrix(function, p, x).trace()) for p in (params, other))
    )
    assert 0.5 < whole < by_features  # the body's share of the kernel does not grow with the body's scale
    traces = []
    for p in (params, other):
        of_head = lambda head, x, p=p: function({**p, **head}, x)  # noqa: E731
        traces.append(analysis.gram_matrix(of_head, {"2.weight": p["2.weight"]}, x).trace())
    assert float(analysis.ratio_of_traces(*traces)) == pytest.approx(by_features)


def test_parameters_without_dimensions_count():
    """f = a b x with a = 2 and b = 3: gradients 3 x and 2 x, so H = 13 x x'."""
    gram = analysis.gram_matrix(
        lambda p, x: p["a"] * p["b"] * x, {"a": torch.tensor(2.0), "b": torch.tensor(3.0)}, torch.tensor([1.0, 2.0])
    )
    assert gram.tolist() == [[13.0, 26.0], [26.0, 52.0]]


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match="one row per sample"):
        analysis.relu_kernel(torch.zeros(3))
    with pytest.raises(InputError, match="3 samples and 2 owners"):
        analysis.relu_kernel(torch.zeros(3, 2), [0, 1])
    with pytest.raises(InputError, match="equal size"):
        analysis.split_bound(torch.eye(3), torch.ones(3), [0, 0, 1])
    with pytest.raises(InputError, match="1 ratios"):
        analysis.mixing_error(torch.eye(2), torch.ones(2), [0, 1], [0.5], 0.1, 1)
    with pytest.raises(OptionError, match="ratio is 2"):
        analysis.mixing_bound(torch.eye(2), torch.ones(2), [0, 1], 2, 1.0, 1)
