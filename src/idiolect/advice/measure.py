"""How clients differ, as numbers: functions of what each client holds, without models and without opinions.

What chance alone would give is taken off: clients of a few samples differ even if they are dealt at random."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..analysis import sketch
from ..core.randomness import generator

SHUFFLES = 5
"""How often clients are dealt anew at random, to see what chance alone gives."""
FEATURES = 256
BINS = 10
_FOLDED, _BLOCK = 4096, 1024


def label_skew(labels: Sequence[Tensor], seed: int = 0) -> float:
    r"""How far clients' label distributions are from the federation's: 0 as if dealt at random, 1 disjoint from it.

    The mean over clients of the total variation distance, which is the share of a client's samples that would have to
    change class, beyond what clients of these sizes show when the same samples are dealt at random,

    .. math:: \frac{d - d_0}{1 - d_0}, \quad d = \frac{1}{N} \sum_i \tfrac{1}{2} \sum_c |p_i(c) - p(c)|.

    Args:
        labels: for each client its labels, ``[samples]``, or ``[samples, positions]`` for maps and sequences.
        seed: determines how samples are dealt at random.

    >>> alike, apart = torch.tensor([0, 1] * 20), [torch.zeros(40).long(), torch.ones(40).long()]
    >>> label_skew([alike, alike]), 0.4 < label_skew(apart) < 0.5
    (0.0, True)
    """
    rows = torch.cat(list(labels))
    sizes = [len(client) for client in labels]
    distance = _distance(rows, sizes)
    chance = float(np.mean([_distance(shuffled, sizes) for shuffled in _shuffle(rows, seed)]))
    return max(0.0, (distance - chance) / (1 - chance)) if chance < 1 else 0.0


def _distance(rows: Tensor, sizes: Sequence[int]) -> float:
    classes = int(rows.max()) + 1
    counts = torch.stack(
        [torch.bincount(part.flatten(), minlength=classes).double() for part in torch.split(rows, list(sizes))]
    )
    shares, common = counts / counts.sum(1, keepdim=True).clamp(min=1), counts.sum(0) / counts.sum()
    return float((shares - common).abs().sum(1).mean() / 2)


def _shuffle(rows: Tensor, seed: int) -> list[Tensor]:
    rng = generator(seed, "dealt at random")
    return [rows[torch.from_numpy(rng.permutation(len(rows)))] for _ in range(SHUFFLES)]


def feature_shift(features: Sequence[Tensor], labels: Sequence[Tensor]) -> float:
    r"""How much of the spread of features lies between clients, within classes and as a whole, whichever is less:
    0 none of it, 1 all of it.

    For each class the components of variance, between clients and within them, are estimated by the analysis of
    variance (without bias, so clients that are dealt at random give about 0), summed over features and classes,

    .. math:: \frac{\sum_c n_c \sigma^2_{b,c}}{\sum_c n_c (\sigma^2_{b,c} + \sigma^2_{w,c})}.

    Within classes different shares of classes do not count; as a whole, with all samples as one class, other names for
    the same things do not. A class that only one client holds tells nothing.

    Args:
        features: for each client numbers that describe its samples, ``[samples, d]``; see :func:`random_features`.
        labels: for each client the class of each sample, ``[samples]``.

    >>> same, moved = torch.tensor([[0.0], [2.0]]), torch.tensor([[100.0], [102.0]])
    >>> label = torch.tensor([0, 0])
    >>> feature_shift([same, same], [label, label]), round(feature_shift([same, moved], [label, label]), 3)
    (0.0, 1.0)
    """
    whole = [torch.zeros_like(client_labels) for client_labels in labels]
    return min(_share_between(features, labels), _share_between(features, whole))


def _share_between(features: Sequence[Tensor], labels: Sequence[Tensor]) -> float:
    """The share of the variance within classes that lies between clients."""
    between = within = 0.0
    for groups in _by_class(features, labels).values():
        sizes = torch.tensor([float(len(group)) for group in groups])
        total, clients = float(sizes.sum()), len(groups)
        if clients < 2 or total <= clients:
            continue
        means = torch.stack([group.mean(0) for group in groups])
        common = (sizes[:, None] * means).sum(0) / total
        inside = sum(float(((group - mean) ** 2).sum()) for group, mean in zip(groups, means, strict=True))
        inside /= total - clients
        outside = float((sizes[:, None] * (means - common) ** 2).sum()) / (clients - 1)
        typical = (total - float((sizes**2).sum()) / total) / (clients - 1)
        between += total * (outside - inside) / typical
        within += total * inside
    return max(0.0, between / (between + within)) if between + within > 0 else 0.0


def concept_shift(features: Sequence[Tensor], labels: Sequence[Tensor]) -> float:
    """How much more often the nearest sample of another client has another label than the nearest of the same client:
    near 0 where what looks alike is called alike everywhere, near 1 where each client has its own names for things.

    Only a stranger that is at least as near as the nearest of the same client counts; elsewhere the inputs differ,
    which is another matter.

    >>> x, y = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
    >>> concept_shift([x, x], [y, y]), concept_shift([x, x], [y, 1 - y])
    (0.0, 1.0)
    """
    rows, targets = torch.cat(list(features)), torch.cat(list(labels))
    owner = torch.arange(len(labels)).repeat_interleave(torch.tensor([len(client_labels) for client_labels in labels]))
    other = same = compared = 0
    for part in torch.split(torch.arange(len(rows)), _BLOCK):
        distances = torch.cdist(rows[part], rows)
        distances[torch.arange(len(part)), part] = torch.inf
        at_home = owner[part, None] == owner
        neighbour = distances.masked_fill(~at_home, torch.inf).min(1)
        stranger = distances.masked_fill(at_home, torch.inf).min(1)
        both = neighbour.values.isfinite() & stranger.values.isfinite()
        near = both & (stranger.values <= neighbour.values)
        same += int((targets[neighbour.indices] != targets[part])[near].sum())
        other += int((targets[stranger.indices] != targets[part])[near].sum())
        compared += int(both.sum())
    return max(0.0, (other - same) / compared) if compared else 0.0


def _by_class(features: Sequence[Tensor], labels: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """For each class the samples of every client that holds some."""
    groups: dict[int, list[Tensor]] = {}
    for x, y in zip(features, labels, strict=True):
        for label in sorted(set(y.tolist())):
            groups.setdefault(label, []).append(x[y == label])
    return groups


def gini(sizes: Sequence[float]) -> float:
    """How unequal sizes are: 0 all alike, near 1 one has nearly everything (Gini's coefficient).

    >>> gini([5, 5, 5]), gini([0, 0, 0, 12])
    (0.0, 0.75)
    """
    ordered = np.sort(np.asarray(sizes, float))
    places = np.arange(1, len(ordered) + 1)
    return float(2 * (places * ordered).sum() / (len(ordered) * ordered.sum()) - (len(ordered) + 1) / len(ordered))


def random_features(inputs: Sequence[Tensor], words: int = 0, seed: int = 0) -> list[Tensor]:
    """For each client ``[samples, 256]`` numbers that describe its inputs, whatever they are: a random layer of
    rectifiers over standardised numbers, whose means show a change of level, direction or noise; for tokens (of which
    there are `words`) the mean of random vectors.

    >>> [tuple(features.shape) for features in random_features([torch.rand(3, 1, 8, 8), torch.rand(5, 1, 8, 8)])]
    [(3, 256), (5, 256)]
    """
    rng = generator(seed, "random features")
    if words:
        vectors = torch.from_numpy(rng.standard_normal((words, FEATURES), "float32"))
        return [vectors[x.long().flatten(1)].mean(1) for x in inputs]
    rows = [sketch(x.flatten(1).float(), _FOLDED) for x in inputs]
    everything = torch.cat(rows)
    mean, scale = everything.mean(0), everything.std().clamp(min=1e-12)
    width = everything.shape[1]
    layer = torch.from_numpy(rng.standard_normal((width, FEATURES), "float32")) / width**0.5
    return [torch.relu((row - mean) / scale @ layer) for row in rows]


def as_classes(targets: Sequence[Tensor]) -> list[Tensor]:
    """Targets that are numbers as classes: tenths of their distribution over all clients.

    >>> as_classes([torch.arange(5.0), torch.arange(5.0, 10.0)])
    [tensor([0, 1, 2, 3, 4]), tensor([5, 6, 7, 8, 9])]
    """
    means = [values.flatten(1).mean(1) if values.ndim > 1 else values for values in targets]
    edges = np.quantile(torch.cat(means).numpy(), [start / BINS for start, _ in pairwise(range(1, BINS + 1))])
    return [torch.from_numpy(np.searchsorted(edges, values.numpy(), side="right")) for values in means]
