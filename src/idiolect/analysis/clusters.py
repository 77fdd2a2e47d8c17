"""Who resembles whom: hierarchical clustering of clients by the parameters that they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError


def cluster_by_ward(trees: Sequence[Mapping[str, Tensor]]) -> NDArray[np.float64]:
    r"""Join clients whose parameters are near, by Ward's method with Euclidean distances.

    Of all groups, those two are joined next whose union has the least additional variance,

    .. math:: d(A, B) = \sqrt{\frac{2 |A| |B|}{|A| + |B|}} \, \|\bar A - \bar B\|_2,

    which for two clients is their distance.

    Args:
        trees: the parameters of each client, of the same names and shapes.

    Returns:
        SciPy's linkage matrix, ``[clients - 1, 4]``: a row per merge with the two groups that are joined, their
        distance and how many clients the new group has. Groups 0, 1, ... are the clients; the first merge makes the
        next one.

    Example:
        >>> points = [{"w": torch.tensor([value])} for value in (0.0, 1.0, 5.0)]
        >>> cluster_by_ward(points).round(3)
        array([[0.   , 1.   , 1.   , 2.   ],
               [2.   , 3.   , 5.196, 3.   ]])

    Reference:
        pFedGate, section 7.3 and figure 4; Ward (1963).
    """
    shapes = [{name: tuple(leaf.shape) for name, leaf in each.items()} for each in trees]
    if len(trees) < 2 or any(each != shapes[0] for each in shapes) or not shapes[0]:
        raise InputError(
            f"There are the parameters of {len(trees)} clients, but clustering needs at least two clients, whose"
            " parameters have the same names and shapes: leave out the others."
        )
    from scipy.cluster.hierarchy import linkage  # which takes long to import

    points = [torch.cat([each[name].detach().double().flatten() for name in shapes[0]]).cpu().numpy() for each in trees]
    joined: NDArray[np.float64] = linkage(np.stack(points), "ward")
    return joined


def common_members(merges: NDArray[np.float64], members: Sequence[Set[int]]) -> list[frozenset[int]]:
    """What all clients of a group have in common, merge by merge: the labels in figure 4 of pFedGate.

    Args:
        merges: a linkage matrix, as `cluster_by_ward` gives it.
        members: what each client has, such as the classes of its samples.

    Example:
        >>> merges = cluster_by_ward([{"w": torch.tensor([value])} for value in (0.0, 1.0, 5.0)])
        >>> [sorted(common) for common in common_members(merges, [{1, 2}, {2, 3}, {3}])]
        [[2], []]
    """
    if len(members) != len(merges) + 1:
        raise InputError(f"There are {len(members)} clients and {len(merges)} merges, but merges are one fewer.")
    groups = [frozenset(each) for each in members]
    for first, second in merges[:, :2].astype(int):
        groups.append(groups[first] & groups[second])
    return groups[len(members) :]
