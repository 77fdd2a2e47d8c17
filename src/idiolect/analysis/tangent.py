"""Neural tangent kernels: how fast a model's errors shrink on given data, and the rates and bounds that the theories of
LG-Mix and of FedSplit state in terms of such kernels. Bounds leave out what their O(...) hides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import InputError, OptionError


def gram_matrix(
    function: Callable[[Mapping[str, Tensor], Tensor], Tensor], params: Mapping[str, Tensor], x: Tensor
) -> Tensor:
    r"""The empirical tangent kernel of a model on samples: inner products of its gradients.

    .. math:: H_{ij} = \sum_o \left\langle \nabla_w f_o(w, x_i), \nabla_w f_o(w, x_j) \right\rangle

    Args:
        function: ``(params, x) -> [n]`` or ``[n, outputs]``, such as ``lambda p, x: task.forward(p, {}, x).outputs``.
        params: the parameters to differentiate by; those of the head alone give its share of the kernel.
        x: ``[n, ...]``.

    Returns:
        ``[n, n]`` in float64, symmetric, without negative eigenvalues.

    Example:
        >>> gram_matrix(lambda p, x: x @ p["w"], {"w": torch.zeros(2)}, torch.tensor([[3.0, 4.0], [1.0, 0.0]])).tolist()
        [[25.0, 3.0], [3.0, 1.0]]

    Reference:
        LG-Mix, section 3.2 (the matrix H of equation 3).
    """

    def one(values: Mapping[str, Tensor], sample: Tensor) -> Tensor:
        return function(values, sample[None]).flatten()

    jacobian = torch.func.vmap(torch.func.jacrev(one), (None, 0))(dict(params), x)
    rows = torch.cat([leaf.reshape(*leaf.shape[:2], -1) for leaf in jacobian.values()], 2).flatten(1).double()
    return rows @ rows.T


def decay(gram: Tensor, error: Tensor, lr: float) -> Tensor:
    r"""The errors after a step of gradient descent on the squared error, to first order: :math:`(I - \eta H) \xi`.

    The paper prints :math:`y - y(t + 1)` on both sides of equation 3; on the right it is :math:`\xi = y - y(t)`.

    Example:
        >>> decay(torch.eye(2), torch.tensor([1.0, -2.0]), lr=0.5)
        tensor([ 0.5000, -1.0000])

    Reference:
        LG-Mix, equation 3.
    """
    return error - lr * (gram.to(error) @ error)


def decay_rate(gram: Tensor, lr: float) -> float:
    r"""The factor by which the squared error shrinks in a step, on average over all directions of the error.

    .. math:: 1 - \frac{2 \eta \, \text{tr} H}{n}

    for small :math:`\eta`. It is exact in the mean of errors that lie in no direction rather than another; in training
    they do, and those along small eigenvalues stay longest. LG-Mix takes the trace of features for that of H
    (:func:`trace`): the two are equal for the parameters of a linear head without bias and one output, and that share
    of the kernel is only part of it.

    Example:
        >>> decay_rate(torch.eye(4), lr=0.1)
        0.8

    Reference:
        LG-Mix, Proposition 1.
    """
    _check_square(gram, "gram")
    return 1 - 2 * lr * float(gram.diagonal().sum()) / len(gram)


def relu_kernel(x: Tensor, clients: Sequence[int] | Tensor | None = None) -> Tensor:
    r"""The tangent kernel of an infinitely wide layer of ReLU units, in closed form.

    .. math:: H_{ij} = E_{w \sim N(0, I)} \left[x_i^\top x_j 1\{w^\top x_i \ge 0, w^\top x_j \ge 0\}\right]
        = x_i^\top x_j \frac{\pi - \arccos(\cos(x_i, x_j))}{2 \pi}

    Args:
        x: ``[n, d]``.
        clients: whose sample each is; then entries between two clients are 0, which is the personal kernel.

    Example:
        >>> relu_kernel(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]])).abs().tolist()
        [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 2.0]]

    Reference:
        FedSplit (FedFac), Definition 1; LG-Mix, appendix B, for infinite width.
    """
    if x.ndim != 2:
        raise InputError(f"x has shape {tuple(x.shape)}, but one row per sample is needed: [n, d].")
    x = x.double()
    products, norms = x @ x.T, x.norm(dim=1)
    cosines = products / (norms[:, None] * norms).clamp_min(torch.finfo(x.dtype).tiny)
    angles = torch.arccos(cosines.clamp(-1, 1))
    angles.fill_diagonal_(0.0)  # to which rounding would add 1e-8
    kernel = products * (math.pi - angles) / (2 * math.pi)
    if clients is None:
        return kernel
    owner = torch.as_tensor(clients)
    if owner.shape != x.shape[:1]:
        raise InputError(f"There are {len(x)} samples and {owner.numel()} owners: give one client per sample.")
    return torch.where(owner[:, None] == owner, kernel, 0.0)


class SplitRate(NamedTuple):
    """FedSplit's linear rate: by which factor the squared error shrinks in a round, FedAvg's factor with these steps,
    and the smallest eigenvalues of the shared and of the personal kernel."""

    factor: float
    fedavg: float
    shared: float
    personal: float


def split_rate(x: Tensor, clients: Sequence[int] | Tensor, lr: float, steps: int, server_lr: float = 1.0) -> SplitRate:
    r"""The rate of FedSplit on a layer of ReLU units of which some are shared.

    .. math:: \|h(t) - y\|^2 \le \left(1 - \tfrac{1}{2} (\rho_1 \lambda^s + \rho_2 \lambda^p)\right)^t \|h(0) - y\|^2,
        \quad \rho_1 = \frac{\eta_g \eta_l G}{C}, \quad \rho_2 = \eta_l G

    It holds for very wide layers and very small learning rates, and is about training data: personal units always
    help there, and most where nothing is shared. It is no reason to personalize.

    Args:
        x: ``[n, d]``, no two rows parallel.
        clients: whose sample each is.
        lr, steps, server_lr: local learning rate and steps G, and the server's learning rate.

    Example:
        >>> rate = split_rate(torch.eye(2), [0, 1], lr=0.1, steps=1)
        >>> round(rate.factor, 4), round(rate.fedavg, 4)
        (0.9625, 0.9875)

    Reference:
        FedSplit (FedFac), Theorem 1.
    """
    owner = torch.as_tensor(clients)
    shared = _smallest(relu_kernel(x))
    personal = _smallest(relu_kernel(x, owner))
    first, second = server_lr * lr * steps / len(set(owner.tolist())), lr * steps
    return SplitRate(1 - (first * shared + second * personal) / 2, 1 - first * shared / 2, shared, personal)


def split_bound(x: Tensor, y: Tensor, clients: Sequence[int] | Tensor) -> float:
    r"""The data's part of FedSplit's bound on the population loss, for clients of equal size n.

    .. math:: 2 \sqrt{\frac{C}{n} y^\top (H^s + H^p)^{-1} y}

    Example:
        >>> round(split_bound(torch.eye(2), torch.tensor([1.0, 0.0]), [0, 1]), 4)
        2.8284

    Reference:
        FedSplit (FedFac), Theorem 2.
    """
    owner = torch.as_tensor(clients)
    sizes = list(Counter(owner.tolist()).values())
    if len(set(sizes)) > 1:
        raise InputError(f"The clients have {sizes} samples, but the bound is for clients of equal size.")
    kernel = relu_kernel(x) + relu_kernel(x, owner)
    quadratic = y.double() @ torch.linalg.solve(kernel, y.double())
    return 2 * math.sqrt(len(sizes) / sizes[0] * float(quadratic))


def mixing_error(
    gram: Tensor,
    errors: Tensor,
    clients: Sequence[int] | Tensor,
    ratios: Sequence[float] | Tensor,
    lr: float,
    steps: int,
    server_lr: float = 1.0,
) -> float:
    r"""LG-Mix's bound on the squared error after a round.

    .. math:: \|\xi\|^2 - \zeta \eta_g (1 - \lambda_{max}) s_{min}(H) \|\xi\|^2
        - \zeta \lambda_{min} \sum_c s_{min}(H_c) \|\xi_c\|^2, \qquad \zeta = \frac{\eta_l K}{2 N}

    With one ratio for all clients this is Theorem 1; with several it is what Theorem 2 means, whose print repeats its
    terms. As :math:`s_{min}(H_c) \ge s_{min}(H)`, for :math:`\eta_g \le 1` and equal ratios the bound is lowest at
    ratio 1: like FedSplit's rate it speaks of training errors alone.

    Args:
        gram: ``[n, n]``, of all samples.
        errors: ``[n]``, labels minus predictions.
        clients: whose sample each is.
        ratios: each client's ratio, in the order of their numbers.
        lr, steps, server_lr: local learning rate and steps K, and the server's learning rate.

    Example:
        >>> round(mixing_error(torch.eye(2), torch.ones(2), [0, 1], [0.5, 0.5], lr=0.4, steps=1), 4)
        1.8

    Reference:
        LG-Mix, Theorems 1 and 2.
    """
    _check_square(gram, "gram")
    owner, shares = torch.as_tensor(clients), torch.as_tensor(ratios, dtype=torch.float64)
    names = sorted(set(owner.tolist()))
    if len(shares) != len(names):
        raise InputError(f"There are {len(names)} clients and {len(shares)} ratios: give one ratio per client.")
    zeta, squares = lr * steps / (2 * len(names)), errors.double().square()
    own = sum(_smallest(gram[owner == c][:, owner == c]) * float(squares[owner == c].sum()) for c in names)
    total = float(squares.sum())
    common = server_lr * (1 - float(shares.max())) * _smallest(gram) * total
    return total - zeta * common - zeta * float(shares.min()) * own


def mixing_bound(
    kernel: Tensor,
    y: Tensor,
    clients: Sequence[int] | Tensor,
    ratio: float,
    lr: float,
    steps: int,
    client: int | None = None,
    server_lr: float = 1.0,
) -> float:
    r"""The data's part of LG-Mix's bound on the population loss: of all personal models' mean, or of one `client`'s.

    .. math:: \sqrt{\frac{2}{n} y^\top A^{-\top} G A^{-1} y}, \qquad
        A = (1 - \lambda) \frac{\eta_l \eta_g K}{N} H + \lambda \eta_l K \tilde H

    where :math:`\tilde H` is H without entries between clients, and G is H for the mean, and for a client

    .. math:: G_c = (1 - \lambda)^2 \frac{\eta_l^2 \eta_g^2 K^2}{N^2} H + \lambda^2 \eta_l^2 K^2 H_c
        + \lambda (1 - \lambda) \eta_l^2 \eta_g K^2 H_c^\times,

    with the rows of client c as :math:`H_c^\times`, of which only the symmetric part counts in y. For the mean the
    bound is not free of :math:`\eta_l K`, as A holds it and H does not: the smaller the steps the worse, without limit,
    which no such bound can mean. Compare values of one `lr` and `steps` only.

    Reference:
        LG-Mix, Theorems 3 and 4.

    Example:
        >>> mixing_bound(torch.eye(2), torch.ones(2), [0, 1], ratio=1.0, lr=1.0, steps=1)
        1.4142135623730951
    """
    _check_square(kernel, "kernel")
    if not 0 <= ratio <= 1:
        raise OptionError(f"ratio is {ratio}, but it is a share in [0, 1].")
    owner, H = torch.as_tensor(clients), kernel.double()
    count, pace = len(set(owner.tolist())), lr * steps
    apart = torch.where(owner[:, None] == owner, H, 0.0)
    common = (1 - ratio) * server_lr * pace / count
    A = common * H + ratio * pace * apart
    G = H
    if client is not None:
        here = owner == client
        local = torch.where(here[:, None] & here, H, 0.0)
        cross = torch.where(here[:, None], H, 0.0)
        G = common**2 * H + (ratio * pace) ** 2 * local + ratio * (1 - ratio) * server_lr * pace**2 * cross
    solved = torch.linalg.solve(A, y.double())
    return math.sqrt(max(0.0, 2 / len(y) * float(solved @ G @ solved)))


def _smallest(kernel: Tensor) -> float:
    return float(torch.linalg.eigvalsh(kernel.double())[0].clamp_min(0))


def _check_square(matrix: Tensor, name: str) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.numel():
        raise InputError(f"{name} has shape {tuple(matrix.shape)}, but one row and one column per sample are needed.")
