"""Transforms of inputs: what each does, for which samples, and on what its random numbers depend."""

import random

import numpy as np
import pytest
import torch

from idiolect.core.errors import IdiolectError
from idiolect.data import Federation
from idiolect.data.samples import Draw
from idiolect.data.transforms import build_transforms

RANDOM = "crop(2), flip, jitter, rotate, erase"
DRAW = Draw(seed=0, client=1, round=2, epoch=3)


def images(samples=6, channels=3, side=8):
    return torch.rand(samples, channels, side, side, generator=torch.Generator().manual_seed(0))


def apply(text, x, draw=DRAW, numbers=None):
    numbers = torch.arange(len(x)) if numbers is None else numbers
    return build_transforms(text)(x, numbers, "client 'a'", draw)


@pytest.mark.parametrize("text", [*RANDOM.split(", "), "normalize", "resize(5)", RANDOM])
def test_a_sample_comes_out_the_same_in_whatever_batch(text):
    x, order = images(), torch.tensor([4, 0, 5])
    together = apply(text, x)
    assert torch.equal(apply(text, x[order], numbers=order), together[order])
    assert torch.equal(apply(text, x[2:3], numbers=torch.tensor([2])), together[2:3])


@pytest.mark.parametrize("other", [{"seed": 1}, {"client": 0}, {"round": -1}, {"epoch": 0}])
def test_random_numbers_depend_on_seed_client_round_and_epoch(other):
    for text in RANDOM.split(", "):
        assert torch.equal(apply(text, images()), apply(text, images()))
        assert not torch.equal(apply(text, images()), apply(text, images(), DRAW._replace(**other)))


def test_transforms_of_a_list_and_samples_of_a_client_draw_numbers_of_their_own():
    x = images(1).repeat(40, 1, 1, 1)
    assert len(apply("crop(2)", x).flatten(1).unique(dim=0)) > 10
    once, twice = apply("flip", x), apply("flip, flip", x)
    assert not torch.equal(twice, x)
    assert not torch.equal(twice, once)


def test_only_training_samples_meet_random_transforms():
    x = images()
    assert torch.equal(apply(RANDOM, x, draw=None), x)
    assert torch.equal(apply("normalize, flip", x, draw=None), (x - 0.5) / 0.5)
    assert torch.equal(apply("crop(pad=0, size=4)", x, draw=None), x[:, :, 2:6, 2:6])
    assert apply("crop(pad=0, size=4)", x).shape == (6, 3, 4, 4)


def test_what_each_does():
    x = images()
    assert torch.equal(apply("flip(p=1)", x), x.flip(3))
    assert torch.equal(apply("flip(p=0)", x), x)
    assert torch.equal(apply("flip(p=1, vertical=true)", x), x.flip(2))
    torch.testing.assert_close(apply("rotate(0)", x), x)
    quarter = build_transforms("rotate(90)").steps[0](x, torch.ones(6, 1, dtype=torch.float64))
    torch.testing.assert_close(quarter, x.rot90(1, (2, 3)))
    gone = (apply("erase(p=1, least=0.1, most=0.2)", x) == 0).all(1).flatten(1).double().mean(1)
    assert bool((gone > 0.05).all())
    assert bool((gone < 0.3).all())
    brighter = apply("jitter(brightness=0.5, contrast=0, saturation=0)", x) / x
    factors = brighter.flatten(1)
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors), rtol=1e-4, atol=1e-4)
    assert bool((factors > 0.49).all())
    assert bool((factors < 1.51).all())
    piece = apply("crop(1)", x)[0]
    padded = torch.nn.functional.pad(x[0], [1] * 4)
    assert any(torch.equal(piece, padded[:, t : t + 8, s : s + 8]) for t in range(3) for s in range(3))


def test_a_users_function_gets_one_sample_and_seeded_generators_and_moves_none():
    def own(x):
        return x + torch.rand(()) + np.random.rand() + random.random()

    chosen, x = build_transforms([own]), images()
    chosen.fit(x, torch.zeros(6))
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    before = torch.rand(3), np.random.rand(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    first = chosen(x, torch.arange(6), "client 'a'", DRAW)
    assert torch.equal(torch.rand(3), before[0])
    assert (np.random.rand(), random.random()) == before[1:]
    assert torch.equal(chosen(x[3:4], torch.tensor([3]), "client 'a'", DRAW), first[3:4])
    assert not torch.equal(chosen(x, torch.arange(6), "client 'a'", DRAW._replace(epoch=4)), first)
    assert torch.equal(chosen(x, torch.arange(6), "client 'a'", None), x)  # it draws, so it is for training alone


def test_a_users_function_that_draws_nothing_is_for_all_samples():
    data = Federation.from_clients([(images(), [0, 1] * 3)]).transformed(build_transforms(lambda x: x[:1] * 2))
    assert data.input_shape == (1, 8, 8)
    x, _ = data.clients[0].split("test")
    assert torch.equal(x, images()[data.clients[0].test, :1] * 2)


OWN = torch.Generator()


def own_generator(x):
    return x + torch.rand(x.shape, generator=OWN)


@pytest.mark.parametrize(
    ("text", "x", "said"),
    [
        ("blur", images(), "no transform 'blur'"),
        ("crop(size=40)", images(), "cannot take 40 x 40 pixels out of 16 x 16"),
        ("flip", torch.rand(6, 4), "flip is for images"),
        ("normalize(imagenet)", images(channels=1), "constants for 3 channels, but the inputs have 1"),
        ("normalize", 255 * images(), "a sample reaches 2"),
        ("erase(least=0.5)", images(), "least share above its most"),
        (torch.nn.ReLU, images(), "cannot be the class ReLU"),
        (lambda x: x.double(), images(), "gives torch.float64"),
        (lambda x: [x], images(), "must give a tensor"),
        (lambda x: x / {}, images(), "failed: "),
        (lambda x: x[: 1 + int(torch.rand(()) * 2)], images(20), "gives the shape"),
        (lambda x: x[:, : 4 + int(torch.rand(()))], images(), "which it does not apply"),
        (own_generator, images(), "from one of its own"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_runs(text, x, said):
    data = Federation.from_clients([{"train": (x, torch.arange(len(x)) % 2), "val": (x, torch.arange(len(x)) % 2)}])
    with pytest.raises(IdiolectError, match=said):
        data.transformed(build_transforms(text))


def test_pixels_that_move_away_from_their_targets_are_refused():
    data = Federation.from_clients([(images(), torch.zeros(6, 8, 8, dtype=torch.long))])
    with pytest.raises(IdiolectError, match="each pixel has a target"):
        data.transformed(build_transforms("normalize, flip"))
    data.transformed(build_transforms("normalize, jitter"))
