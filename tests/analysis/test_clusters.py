"""Ward's clustering of clients by what they keep."""

import math

import numpy as np
import pytest
import torch

from idiolect.analysis import cluster_by_ward, common_members
from idiolect.core.errors import InputError


def points(*values):
    return [{"w": torch.tensor([float(x)]), "b": torch.tensor([[float(y)]])} for x, y in values]


def test_two_groups_are_joined_by_the_variance_that_their_union_adds():
    """(0, 0) and (0, 2) join at 2, (6, 0) and (6, 1) at 1 before. Their means (0, 1) and (6, 0.5) are sqrt(36.25)
    apart, and two clients each give the factor sqrt(2 x 2 x 2 / 4) = sqrt(2)."""
    merges = cluster_by_ward(points((0, 0), (0, 2), (6, 0), (6, 1)))
    assert merges[:, :2].tolist() == [[2, 3], [0, 1], [4, 5]]
    assert merges[:, 2] == pytest.approx([1, 2, math.sqrt(2 * 36.25)])
    assert merges[:, 3].tolist() == [2, 2, 4]


def test_a_group_has_in_common_what_all_of_its_clients_have():
    merges = cluster_by_ward(points((0, 0), (0, 2), (6, 0), (6, 1)))
    assert common_members(merges, [{0, 1}, {1, 2}, {1, 5}, {1, 4, 5}]) == [{1, 5}, {1}, {1}]


def test_the_order_of_clients_changes_names_only():
    found, turned = (cluster_by_ward(each) for each in (points((0, 0), (0, 3), (9, 0)), points((9, 0), (0, 3), (0, 0))))
    assert np.allclose(found[:, 2:], turned[:, 2:])


@pytest.mark.parametrize("wrong", [[], points((0, 0)), [*points((0, 0)), {"w": torch.zeros(1)}], [{}, {}]])
def test_what_cannot_be_compared_is_refused(wrong):
    with pytest.raises(InputError, match="at least two clients, whose parameters have the same names and shapes"):
        cluster_by_ward(wrong)


def test_members_are_needed_of_all_clients():
    with pytest.raises(InputError, match="3 clients and 1 merges"):
        common_members(cluster_by_ward(points((0, 0), (0, 2))), [{1}, {2}, {3}])
