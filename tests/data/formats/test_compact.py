"""The compact files under IDIOLECT_DATA: a small part of each is read, whatever of them is there."""

from __future__ import annotations

import numpy as np
import pytest

from idiolect.data.sources import sources
from idiolect.data.sources.mnist import read_pair

pytestmark = pytest.mark.data

SETS = [
    ("cifar10(samples=60)", "cifar10", (3, 32, 32), 10),
    ("tiny-imagenet-100(samples=60)", "tiny-imagenet-100", (3, 32, 32), 100),
    ("digits5(domains=[svhn, usps, mnistm], per_domain=20)", "digits5", (3, 28, 28), 10),
    ("office-caltech10(samples=60)", "office-caltech10", (3, 96, 96), 10),
    ("retina(samples=4)", "retina", (3, 256, 256), 2),
    ("har(samples=100)", "har", None, 6),
    ("heart", "heart", (13,), 2),
    ("ag-news(samples=200)", "ag-news", (200,), 4),
    ("shakespeare(edition=tiny, stride=40, samples=100)", "shakespeare", (80,), 80),
]


@pytest.mark.parametrize(("expression", "name", "shape", "classes"), SETS)
def test_a_part_of_each_set(expression, name, shape, classes):
    source = sources.build(expression)
    if not source.available():
        pytest.skip(f"{name} is not under IDIOLECT_DATA")
    pool = source.load()
    assert shape is None or pool.input_shape == shape
    assert pool.classes == classes
    assert pool.x.is_contiguous()
    if not pool.tokens:
        assert float(pool.x.std()) > 0.01
    assert len(np.unique(pool.y)) > 1


@pytest.mark.skipif(not sources.build("emnist-letters").available(), reason="EMNIST is not under IDIOLECT_DATA")
def test_letters_are_balanced():
    _, found = sources.build("emnist-letters").find()
    _, labels = read_pair(found, tuple(found)[2:], classes=26, start=1)
    assert np.bincount(labels).tolist() == [800] * 26


@pytest.mark.skipif(not sources.build("heart").available(), reason="UCI heart disease is not under IDIOLECT_DATA")
def test_hospitals_have_the_known_sizes():
    groups = sources.build("heart").load().groups
    assert np.unique(groups, return_counts=True)[1].tolist() == [303, 261, 46, 130]


@pytest.mark.skipif(not sources.build("har").available(), reason="UCI HAR is not under IDIOLECT_DATA")
def test_subjects_have_the_known_sizes():
    sizes = np.unique(sources.build("har").load().groups, return_counts=True)[1]
    assert (len(sizes), sizes.sum(), sizes.min(), sizes.max()) == (30, 10_299, 281, 409)
