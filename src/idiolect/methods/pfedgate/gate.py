"""pFedGate's gating network: from a batch of inputs to numbers in (0, 1), one or two per gate and sample. What the
gates are put on is the method's affair. Its norms weigh the samples, so padding in a batch changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...contract import ModelError
from ...task.network import Net

POOLS = {2: F.avg_pool1d, 3: F.avg_pool2d, 4: F.avg_pool3d}
NEWEST = 0.1
"""The weight of the newest batch in running statistics."""


class Norm(nn.Module):
    """What both norms share: an affine map per channel, and running statistics of batches."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, first_var: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.full((channels,), first_var))

    def batch_stats(
        self, means: Tensor, variances: Tensor | None, positions: int, weight: Tensor, unbiased: bool
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance per channel: the batch's in training, of samples whose means and variances over `positions`
        are given, `[batch, channels]`; else the running ones. Where there is one position, there are no variances over
        positions. `unbiased` says which variance runs."""
        if not self.training:
            return self.running_mean, self.running_var
        total = weight.sum()
        share = weight / total
        mean = share @ means
        apart = (means - mean).square()
        var = share @ (apart if variances is None else apart + variances)
        count = total * positions
        running = var * count / (count - 1).clamp_min(1.0) if unbiased else var
        for old, new in ((self.running_mean, mean), (self.running_var, running)):
            old.copy_(torch.lerp(old, new.detach(), NEWEST))  # `lerp_` would go client by client in a stack
        return mean, var


class BatchNorm(Norm):
    """Batch normalisation as in PyTorch, of samples that have weights.

    >>> norm = BatchNorm(1)
    >>> norm(torch.tensor([[1.0], [3.0], [99.0]]), torch.tensor([1.0, 1.0, 0.0]))[:2].flatten().round(decimals=3)
    tensor([-1.,  1.], grad_fn=<RoundBackward1>)
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, first_var=1.0)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Normalise `[batch, channels]`."""
        mean, var = self.batch_stats(x, None, 1, weight, unbiased=True)
        scale = self.weight * (var + self.eps).rsqrt()
        return torch.addcmul(self.bias, x - mean, scale)


class SwitchableNorm(Norm):
    r"""Switchable normalisation (Luo et al., ICLR 2019): a learnt mixture of instance, layer and batch statistics,

    .. math:: \gamma \frac{x - \sum_k \lambda_k \mu_k}{\sqrt{\sum_k \lambda'_k \sigma_k^2 + \epsilon}} + \beta,

    with soft-max weights :math:`\lambda, \lambda'` that start out equal. Inputs are `[batch, channels, positions]`;
    plain vectors have one position, and so no instance statistics.
    """

    def __init__(self, channels: int, positions: int) -> None:
        super().__init__(channels, first_var=0.0)
        kinds = 2 if positions == 1 else 3
        self.mean_logits, self.var_logits = nn.Parameter(torch.ones(kinds)), nn.Parameter(torch.ones(kinds))

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Normalise `[batch, channels, positions]`."""
        instance = x.mean(2)
        within = (x - instance[:, :, None]).square().mean(2)
        layer = instance.mean(1, keepdim=True)
        spread = (within + (instance - layer).square()).mean(1, keepdim=True)
        batch = self.batch_stats(instance, within, x.shape[2], weight, unbiased=False)
        stats = [(instance, within), (layer, spread), batch][-len(self.mean_logits) :]
        means, variances = (
            torch.stack([statistic.expand(x.shape[:2]) for statistic in kinds], 2) for kinds in zip(*stats, strict=True)
        )
        scale = self.weight * (variances @ self.var_logits.softmax(0) + self.eps).rsqrt()
        shift = self.bias - means @ self.mean_logits.softmax(0) * scale
        return torch.addcmul(shift[:, :, None], x, scale[:, :, None])


class Gate(nn.Module):
    """Switchable norm, one linear map per path, batch norm, sigmoid (pFedGate, section 5.2.1).

    Called with a pair (inputs, one weight per sample), it gives `[batch, paths, gates]`: path 0 scales, the last
    path scores.

    Args:
        shape: the shape of one sample: a vector, or channels and their positions.
        gates: how many gates there are.
        shared_path: one path that both scales and scores, instead of two.
        pre_norm, post_norm: whether the inputs and the linear maps are normalised.
        pool: first average squares of so many positions along each axis.
        bias: where the scales' sigmoids start: at 0 they are about 1/2, at 4 about 1.
        sigmoid: whether gates are brought to (0, 1); without, they are the numbers as they come.

    >>> gate = Gate((3, 8, 8), gates=5, pool=2)
    >>> gate((torch.randn(4, 3, 8, 8), torch.ones(4))).shape, gate.paths.in_features
    (torch.Size([4, 2, 5]), 48)
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        gates: int,
        shared_path: bool = False,
        pre_norm: bool = True,
        post_norm: bool = True,
        pool: int = 1,
        bias: float = 0.0,
        sigmoid: bool = True,
    ) -> None:
        super().__init__()
        if not can_pool(shape, pool):
            raise ModelError(
                f"gate_pool={pool} averages squares of positions, but a sample has the shape {list(shape)}; pool inputs"
                " that have channels and at least so many positions along each axis, or choose gate_pool=1"
            )
        self.shape, self.pool, self.gates, self.sigmoid = shape, pool, gates, sigmoid
        channels = shape[0] if shape else 1
        positions = math.prod(side // pool for side in shape[1:])
        outputs = gates if shared_path else 2 * gates
        self.pre = SwitchableNorm(channels, positions) if pre_norm else None
        self.paths = nn.Linear(channels * positions, outputs)
        self.post = BatchNorm(outputs) if post_norm else None
        with torch.no_grad():
            (self.post or self.paths).bias[:gates] += bias

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Gates per sample, in the gate's own precision whatever the inputs'."""
        x, weight = (tensor.to(self.paths.weight.dtype) for tensor in inputs)
        if self.pool > 1:
            x = POOLS[x.ndim - 1](x, self.pool)
        x = x.reshape(len(x), -1, 1) if x.ndim < 3 else x.flatten(2)
        if self.pre is not None:
            x = self.pre(x, weight)
        raw: Tensor = self.paths(x.flatten(1))
        if self.post is not None:
            raw = self.post(raw, weight)
        return (raw.sigmoid() if self.sigmoid else raw).reshape(len(x), -1, self.gates)


def can_pool(shape: tuple[int, ...], pool: int) -> bool:
    """Whether samples of a shape have channels, and squares of so many positions."""
    return pool == 1 or (len(shape) in POOLS and min(shape[1:]) >= pool)


def smallest_pool(made: Callable[..., Gate], largest: int) -> int:
    """The smallest power of two with which a gate has at most `largest` parameters, as far as its inputs can be pooled.

    >>> smallest_pool(lambda pool: Gate((3, 32, 32), 300, pool=pool), largest=128_415)
    4
    >>> smallest_pool(lambda pool: Gate((50,), 300, pool=pool), largest=10)
    1
    """
    with torch.device("meta"):  # shapes only
        gate = made(pool=1)
        while sum(leaf.numel() for leaf in gate.parameters()) > largest and can_pool(gate.shape, 2 * gate.pool):
            gate = made(pool=2 * gate.pool)
    return gate.pool


def gate_input(net: Net, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What a gate looks at: the inputs or, of tokens, the mean over positions of the gated model's embeddings.

    >>> table = torch.tensor([[0.0], [1.0], [4.0]])
    >>> gate_input(Net(nn.Embedding(3, 1)), {"weight": table}, torch.tensor([[0, 1], [2, 2]]))
    tensor([[0.5000],
            [4.0000]])
    """
    if x.is_floating_point():
        return x
    if net.call is not None:
        tokens = net.call.layout.whole_numbers(x)
        if len(tokens) > 1:
            raise ModelError(
                f"a gate looks at the inputs, which here are several of whole numbers ({net.call.layout}); give the"
                " mask as"
                " floating-point numbers or as booleans"
            )
        x = tokens[0]
    for name, module in net.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            table = params[f"{name}.weight" if name else "weight"].detach()
            return F.embedding(x, table).reshape(len(x), -1, table.shape[1]).mean(1)
    raise ModelError(
        f"a gate looks at the inputs, which here are whole numbers ({x.dtype}), but the model has no nn.Embedding to"
        " look them up in; give inputs as floating-point numbers, or a model that embeds them"
    )
