"""Averages are sums that groups of clients add up to, taken in double precision."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.core.sums import Sums

SHAPES = {"matrix": (3, 2), "vector": (3,), "number": ()}
MISSING = ("keep", "before", "zero")


def leaf(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


@st.composite
def clients(draw, weights=None, masks=True, least=1):
    """(tree, weight, mask) per client; trees may lack names, masks may lack leaves."""
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    made = []
    for _ in range(draw(st.integers(least, 6))):
        names = draw(st.sets(st.sampled_from(sorted(SHAPES)), min_size=1))
        leaves = {name: torch.randn(SHAPES[name], generator=random) for name in SHAPES if name in names}
        hidden = draw(st.sets(st.sampled_from(sorted(names)))) if masks else set()
        mask = {name: torch.rand(SHAPES[name], generator=random) < 0.5 for name in SHAPES if name in hidden}
        weight = draw(weights) if weights is not None else draw(st.floats(0.25, 100.0))
        made.append((leaves, weight, mask or None))
    return made


def plain_mean(sent, before, missing):
    """The mean coordinate by coordinate, in Python's numbers."""
    after = {name: value.clone() for name, value in before.items()}
    everybody = sum(weight for _, weight, _ in sent)
    for name in {name for leaves, _, _ in sent for name in leaves}:
        for at in itertools.product(*map(range, SHAPES[name])):
            total = counted = 0.0
            for leaves, weight, mask in sent:
                if name in leaves and (mask is None or name not in mask or bool(mask[name][at])):
                    total, counted = total + weight * float(leaves[name][at]), counted + weight
            old = float(before[name][at])
            if missing == "zero":
                value = total / everybody
            elif missing == "before":
                value = (total + (everybody - counted) * old) / everybody
            else:
                value = total / counted if counted else old
            after[name][at] = value
    return after


def values_before():
    return {name: torch.randn(shape, generator=torch.Generator().manual_seed(7)) for name, shape in SHAPES.items()}


# -- laws ------------------------------------------------------------------------------------------------


@given(sent=clients(), missing=st.sampled_from(MISSING))
@settings(deadline=None)
def test_the_mean_is_that_of_a_plain_loop(sent, missing):
    before = values_before()
    mean = Sums.of(sent, missing).mean(before)
    expected = plain_mean(sent, before, missing)
    assert mean.keys() == expected.keys()
    for name, value in mean.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


@given(sent=clients(least=2), cut=st.integers(1, 5), missing=st.sampled_from(MISSING))
@settings(deadline=None)
def test_the_sums_of_two_groups_add_up_to_those_of_all(sent, cut, missing):
    cut = min(cut, len(sent) - 1)
    parts, whole = Sums.of(sent[:cut], missing) + Sums.of(sent[cut:], missing), Sums.of(sent, missing)
    assert (parts.count, parts._dtypes, parts._missing) == (whole.count, whole._dtypes, missing)
    assert parts._everybody == pytest.approx(whole._everybody)
    torch.testing.assert_close(parts.total, whole.total)
    torch.testing.assert_close(parts.mean(values_before()), whole.mean(values_before()))


@given(sent=clients(weights=st.integers(1, 50).map(lambda n: torch.tensor(float(n))), least=2), cut=st.integers(1, 5))
@settings(deadline=None)
def test_groups_add_up_where_weights_are_tensors_too(sent, cut):
    cut = min(cut, len(sent) - 1)
    parts, whole = Sums.of(sent[:cut]) + Sums.of(sent[cut:]), Sums.of(sent)
    plain = Sums.of([(leaves, float(weight), mask) for leaves, weight, mask in sent])
    assert parts._everybody == whole._everybody == plain._everybody
    for name, value in whole.mean().items():
        assert torch.equal(value, plain.mean()[name])
        torch.testing.assert_close(value, parts.mean()[name])


@given(sent=clients(masks=False), missing=st.sampled_from(MISSING))
@settings(deadline=None)
def test_a_mask_of_ones_gives_the_bits_of_none(sent, missing):
    ones = [
        (leaves, weight, {n: torch.ones_like(each, dtype=torch.bool) for n, each in leaves.items()})
        for leaves, weight, _ in sent
    ]
    without, with_ones = (Sums.of(each, missing).mean(values_before()) for each in (sent, ones))
    for name, value in without.items():
        assert torch.equal(value, with_ones[name]), name


@given(seed=st.integers(0, 2**32), count=st.integers(1, 5))
@settings(deadline=None)
def test_a_vector_of_weights_weighs_rows(seed, count):
    random = torch.Generator().manual_seed(seed)
    trees = [{n: torch.randn(SHAPES[n], generator=random) for n in ("matrix", "vector")} for _ in range(count)]
    rows = [torch.randint(0, 4, (3,), generator=random).float() for _ in range(count)]
    before = values_before()
    mean = Sums.of([(leaves, weights, None) for leaves, weights in zip(trees, rows, strict=True)]).mean(before)
    for row in range(3):
        total = sum(float(weights[row]) for weights in rows)
        for name in ("matrix", "vector"):
            summed = sum(float(p[row]) * leaves[name][row].double() for leaves, p in zip(trees, rows, strict=True))
            expected = (summed / total).float() if total else before[name][row]
            torch.testing.assert_close(mean[name][row], expected)


# -- examples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missing", "expected"), [("keep", 4.0), ("before", 3.0), ("zero", 2.0)])
def test_a_coordinate_that_one_of_two_sent(missing, expected):
    """One of two equal clients sent 4, the value before was 2: 4, or (4 + 2) / 2, or (4 + 0) / 2."""
    sent = [(leaf(4.0), 1, {"w": torch.tensor([True])}), (leaf(99.0), 1, {"w": torch.tensor([False])})]
    assert Sums.of(sent, missing).mean(leaf(2.0))["w"].item() == expected


def test_what_is_not_sent_may_be_anything_even_not_finite():
    mask = {"w": torch.tensor([True, False])}
    for weight in (1.0, torch.tensor([1.0, 1.0])):
        mean = Sums.of([(leaf(1.0, float("nan")), weight, mask)]).mean(leaf(0.0, 5.0))
        assert mean["w"].tolist() == [1.0, 5.0]


def test_without_a_value_before_what_nobody_sent_is_zero():
    assert Sums.of([(leaf(1.0, 2.0), 1, {"w": torch.tensor([True, False])})]).mean()["w"].tolist() == [1.0, 0.0]


def test_names_that_nobody_sent_are_kept_and_zero_is_a_value_like_any_other():
    mean = Sums.of([(leaf(0.0), 1, None), (leaf(4.0), 1, None)]).mean({**leaf(9.0), "other": torch.tensor(3.0)})
    assert (mean["w"].item(), mean["other"].item()) == (2.0, 3.0)


def test_one_clients_mean_is_its_value_to_the_bit():
    value = {"w": torch.randn(100, generator=torch.Generator().manual_seed(1))}
    assert torch.equal(Sums.of([(value, 137, None)]).mean()["w"], value["w"])


def test_whole_numbers_take_the_largest_also_over_groups():
    small, large = ([({"n": torch.tensor(n)}, 10, None)] for n in (3, 5))
    assert Sums.of(small + large).mean({"n": torch.tensor(9)})["n"].item() == 5
    assert (Sums.of(small) + Sums.of(large)).mean()["n"].item() == 5


def test_sums_are_double_and_means_have_the_leaves_own_type():
    sums = Sums.of([({"w": torch.ones(2, dtype=torch.float16)}, 3, None)])
    assert sums.total["w"].dtype == torch.float64
    assert sums.mean()["w"].dtype == torch.float16
    assert (sums.count, sums._everybody) == (1, 3.0)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("masked", [(), (0, 1), (2,), (0, 1, 2, 3)])
def test_going_on_from_sums_before_equals_all_in_a_row_to_the_bit(masked, rows):
    """Also where only the first or only the later ones are masked."""
    draw = torch.Generator().manual_seed(2)
    sent = []
    for i in range(4):
        weight = torch.rand(3, generator=draw) if rows else 0.1 + i / 3
        value, n = torch.randn(3, 2, generator=draw), torch.tensor(i)
        sent.append(
            ({"w": value, "n": n}, weight, {"w": torch.randn(3, 2, generator=draw) > 0} if i in masked else None)
        )
    whole, parts = Sums.of(sent), Sums.of(sent[2:], before=Sums.of(sent[:2]))
    for name in ("w", "n"):
        assert torch.equal(whole.total[name], parts.total[name])
        assert torch.equal(
            whole.weight[name].expand_as(whole.total[name]), parts.weight[name].expand_as(whole.total[name])
        )
    assert (whole.count, whole._everybody, whole._dtypes) == (parts.count, parts._everybody, parts._dtypes)
    assert torch.equal(whole.mean()["w"], parts.mean()["w"])
