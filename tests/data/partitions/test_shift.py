"""Shifts transform a client's inputs, the same way every time and whatever else is gathered."""

from __future__ import annotations

import pytest
import torch

from idiolect.core.errors import DataError, OptionError
from idiolect.data import Shift
from idiolect.data.partitions.shift import KINDS, shift_for

IMAGES = torch.rand(6, 2, 8, 8, generator=torch.Generator().manual_seed(0))
INDEX = torch.arange(6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shift_keeps_shape_and_depends_on_the_sample_alone(kind):
    shift = Shift(kind, 0.7, seed=3)
    whole = shift(IMAGES, INDEX)
    assert whole.shape == IMAGES.shape
    assert not torch.equal(whole, IMAGES)
    part = torch.tensor([4, 1])
    torch.testing.assert_close(shift(IMAGES[part], INDEX[part]), whole[part])


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_split_stays_empty(kind):
    assert Shift(kind, 0.7)(IMAGES[:0], INDEX[:0]).shape == (0, 2, 8, 8)


def test_quarter_turns_are_exact_and_other_angles_agree_with_them():
    assert torch.equal(Shift("rotate", 270.0)(IMAGES, INDEX), torch.rot90(IMAGES, 3, (2, 3)))
    torch.testing.assert_close(
        Shift("rotate", 89.9999)(IMAGES, INDEX), torch.rot90(IMAGES, 1, (2, 3)), atol=1e-3, rtol=0
    )
    oblong = IMAGES[:, :, :6]
    assert Shift("rotate", 90.0)(oblong, INDEX).shape == oblong.shape
    assert torch.equal(Shift("rotate", 180.0)(oblong, INDEX), torch.rot90(oblong, 2, (2, 3)))


def test_noise_is_standard_normal_times_its_amount():
    noise = Shift("noise", 0.5, seed=1)(torch.zeros(200, 500), torch.arange(200))
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.std()) - 0.5) < 0.01
    rows = torch.corrcoef(noise)
    assert float((rows - torch.eye(200)).abs().max()) < 0.3
    assert not torch.equal(noise, Shift("noise", 0.5, seed=2)(torch.zeros(200, 500), torch.arange(200)))


def test_the_point_shifts_do_what_they_say():
    x = torch.tensor([[0.0, 1.0, 0.5]])
    torch.testing.assert_close(Shift("contrast", 0.2)(x, INDEX[:1]), torch.tensor([[0.4, 0.6, 0.5]]))
    torch.testing.assert_close(Shift("scale", 0.2)(x, INDEX[:1]), torch.tensor([[0.0, 0.2, 0.1]]))
    torch.testing.assert_close(Shift("invert", 1.0)(x, INDEX[:1]), torch.tensor([[1.0, 0.0, 0.5]]))


def test_blur_keeps_a_constant_image_and_spreads_a_point():
    torch.testing.assert_close(Shift("blur", 1.0)(torch.ones(1, 1, 5, 5), INDEX[:1]), torch.ones(1, 1, 5, 5))
    point = torch.zeros(1, 1, 9, 9)
    point[0, 0, 4, 4] = 1.0
    blurred = Shift("blur", 1.0)(point, INDEX[:1])
    assert 0.1 < float(blurred[0, 0, 4, 4]) < 0.2
    assert float(blurred.sum()) == pytest.approx(1.0, abs=1e-2)


def test_clients_differ_by_their_position():
    assert [str(shift_for("noise", 1.0, at, 3)) for at in range(3)] == ["None", "noise(0.25)", "noise(0.5)"]
    assert [str(shift_for("invert", 1.0, at, 3)) for at in range(3)] == ["None", "invert(1)", "None"]
    assert str(shift_for("rotate", 0.5, 1, 2)) == "rotate(90)"
    assert all(shift_for(kind, 0.0, at, 9) is None for kind in (*KINDS, "mixed") for at in range(9))
    assert shift_for("blur", 1.0, 0, 1) is None


def test_mixed_gives_each_client_another_transformation():
    shifts = [str(shift_for("mixed", 1.0, at, 13)) for at in range(13)]
    assert len(set(shifts)) == 13
    assert shifts[:3] == ["None", "rotate(90)", "noise(0.5)"]


def test_what_cannot_be_shifted_is_refused():
    with pytest.raises(OptionError, match="a shift cannot be 'melt'"):
        Shift("melt", 1.0)
    with pytest.raises(DataError, match=r"rotate\(90\) needs images"):
        Shift("rotate", 90.0)(torch.zeros(2, 3), INDEX[:2])
    with pytest.raises(DataError, match="needs numbers as inputs, not tokens"):
        Shift("noise", 1.0)(torch.zeros(2, 3).long(), INDEX[:2])
