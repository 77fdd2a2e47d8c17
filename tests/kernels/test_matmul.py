import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

matmul = pytest.importorskip("idiolect.kernels.matmul", reason="numba is not installed")
sizes = st.integers(1, 70)


def matrix(seed, rows, columns, stride):
    """A matrix within a larger one, whose other elements must not matter."""
    whole = np.full((rows, stride), np.nan, np.float32)
    whole[:, :columns] = np.random.default_rng(seed).standard_normal((rows, columns))
    return whole


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, st.integers(0, 3), st.booleans(), st.booleans())
def test_products_of_any_size(rows, columns, inner, apart, add, transposed):
    left = matrix(0, *((inner, rows, rows + apart) if transposed else (rows, inner, inner + apart)))
    right, to = matrix(1, inner, columns, columns + apart), matrix(2, rows, columns, columns + apart)
    if not add:
        to[:, :columns] = np.inf
    stride, step = (1, left.shape[1]) if transposed else (left.shape[1], 1)
    factor = left[:, :rows].T if transposed else left[:, :inner]
    wanted = factor.astype(np.float64) @ right[:, :columns] + (to[:, :columns] if add else 0)
    flat = (left.reshape(-1), 0, stride, step, right.reshape(-1), 0, right.shape[1])
    matmul.multiply(to.reshape(-1), 0, to.shape[1], rows, columns, *flat, inner, add)
    np.testing.assert_allclose(to[:, :columns], wanted, rtol=1e-4, atol=1e-4)
    assert np.isnan(to[:, columns:]).all()


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(0, 3))
def test_transposes_of_any_size(rows, columns, apart):
    source, to = matrix(0, rows, columns, columns + apart), np.full((columns, rows + apart), np.nan, np.float32)
    matmul.transpose(source.reshape(-1), 0, source.shape[1], rows, columns, to.reshape(-1), 0, to.shape[1])
    np.testing.assert_array_equal(to[:, :rows], source[:, :columns].T)
    assert np.isnan(to[:, rows:]).all()
