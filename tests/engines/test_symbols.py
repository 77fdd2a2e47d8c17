"""What is known of a tensor without values never depends on what was asked before."""

import pytest
import torch

from idiolect.engines.symbols import make_empty, make_symbol


def unknown(dtype=torch.float32):
    return make_symbol(torch.empty(2, 3, dtype=dtype), None, {"x"})


def test_a_whole_number_and_a_float_give_other_types_in_any_order():
    labels = unknown(torch.int64)
    for _ in range(2):
        assert [(labels + 1).dtype, (labels + 1.0).dtype] == [torch.int64, torch.float32]
        assert [(labels.float() * True).dtype, (labels * True).dtype] == [torch.float32, torch.int64]


def test_what_changes_a_shape_in_place_is_refused_and_spoils_no_other():
    with pytest.raises(TypeError, match="changes the shape"):
        unknown().unsqueeze_(0)
    assert make_empty(torch.Size((2, 3)), torch.float32).shape == (2, 3)
    assert (unknown() @ unknown().T).shape == (2, 2)


def test_what_is_done_in_place_is_not_known_afterwards():
    leaf = make_symbol(torch.empty(2), {"w": 1.0}, {"w"})
    leaf.mul_(unknown().sum(1))
    assert (leaf.terms, leaf.needs) == (None, {"w", "x"})
