"""Blocks: their sizes, and the choice within a budget against plain loops and against every possible choice."""

from itertools import product

import pytest
import torch

from idiolect.analysis import block_sizes, select_blocks
from idiolect.core.errors import InputError, OptionError

SOLVERS = ["greedy", "density", "exact"]


def problem(seed, blocks=9, levels=None):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(blocks, generator=generator)
    if levels:
        scores = (scores * levels).round() / levels
    sizes = torch.randint(1, 30, (blocks,), generator=generator)
    mandatory = torch.rand(blocks, generator=generator) < 0.3
    return scores, sizes, mandatory


def plain_greedy(keys, sizes, budget, mandatory):
    chosen = list(mandatory)
    room = budget - sum(size for size, fixed in zip(sizes, mandatory, strict=True) if fixed)
    for j in sorted(range(len(keys)), key=lambda j: (-keys[j], j)):
        if not chosen[j] and sizes[j] <= room:
            chosen[j] = True
            room -= sizes[j]
    return chosen


def best_total(scores, sizes, budget, mandatory):
    """The largest score of any choice that fits, found by trying all; the mandatory blocks alone if none does."""
    totals = [sum(s for s, fixed in zip(scores, mandatory, strict=True) if fixed)]
    for choice in product([False, True], repeat=len(scores)):
        legal = all(c or not m for c, m in zip(choice, mandatory, strict=True))
        if legal and sum(w for w, c in zip(sizes, choice, strict=True) if c) <= budget:
            totals.append(sum(s for s, c in zip(scores, choice, strict=True) if c))
    return max(totals)


def test_equal_chunks_of_twenty_five():
    assert block_sizes(25, factor=10, min_share=0.1, equal=True) == (3,) * 8 + (1,)


@pytest.mark.parametrize(
    ("d", "factor", "min_share", "expected"),
    [
        (100, 5, 0.2, (20, 20, 20, 20, 20)),
        (100, 5, 0.1, (10, 23, 23, 23, 21)),
        (100, 3, 0.29, (29, 36, 35)),  # 0.29 * 100 is 28.999... in floating point
        (3, 5, 0.2, (1, 1, 1)),
        (1, 5, 0.2, (1,)),
        (10, 2, 1.0, (10,)),
    ],
)
def test_block_sizes(d, factor, min_share, expected):
    assert block_sizes(d, factor, min_share) == expected


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("factor", [2, 5, 10])
def test_blocks_cover_the_tensor(factor, equal):
    for d in range(1, 60):
        sizes = block_sizes(d, factor, 0.15, equal)
        assert sum(sizes) == d
        assert min(sizes) >= 1
        assert len(sizes) <= factor


def test_impossible_blocks_are_refused():
    with pytest.raises(InputError, match="0 elements"):
        block_sizes(0, 5, 0.2)
    with pytest.raises(OptionError, match="split factor is 1"):
        block_sizes(10, 1, 0.2)
    with pytest.raises(OptionError, match=r"min_share is 0.*\(0, 1\]"):
        block_sizes(10, 5, 0)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_the_active_parameters_fit_the_budget_or_are_mandatory(solver, share):
    for seed in range(20):
        scores, sizes, mandatory = problem(seed)
        budget = int(share * sizes.sum())
        active = select_blocks(scores, sizes, budget, mandatory, solver)
        assert active[mandatory].all()
        assert sizes[active].sum() <= max(budget, sizes[mandatory].sum())


@pytest.mark.parametrize("levels", [None, 4])
@pytest.mark.parametrize("seed", range(10))
def test_greedy_and_density_equal_the_plain_loop(seed, levels):
    scores, sizes, mandatory = problem(seed, blocks=15, levels=levels)
    for budget in (0, 40, 90, 1000):
        for solver, keys in (("greedy", scores), ("density", scores / sizes)):
            expected = plain_greedy(keys.tolist(), sizes.tolist(), budget, mandatory.tolist())
            assert select_blocks(scores, sizes.tolist(), budget, mandatory, solver).tolist() == expected


@pytest.mark.parametrize("levels", [None, 4])
@pytest.mark.parametrize("seed", range(6))
def test_exact_is_the_best_of_all_choices(seed, levels):
    scores, sizes, mandatory = problem(seed, levels=levels)
    for budget in (0, 25, 60, 100, 1000):
        active = select_blocks(scores, sizes, budget, mandatory, "exact")
        best = best_total(scores.tolist(), sizes.tolist(), budget, mandatory.tolist())
        assert scores[active].sum().item() == pytest.approx(best)


def test_exact_takes_large_sizes_as_they_are():
    scores, sizes, mandatory = problem(3)
    scaled = select_blocks(scores, sizes * 1_000_003, 60 * 1_000_003, mandatory, "exact")
    assert torch.equal(scaled, select_blocks(scores, sizes, 60, mandatory, "exact"))


def test_a_block_that_does_not_fit_is_skipped_and_the_next_is_tried():
    active = select_blocks(
        torch.tensor([0.1, 0.9, 0.8, 0.7]), (1, 5, 9, 2), 8, torch.tensor([True, False, False, False])
    )
    assert active.tolist() == [True, True, False, True]


def test_equal_scores_go_to_the_lower_index():
    none = torch.zeros(4, dtype=torch.bool)
    for solver in SOLVERS:
        assert select_blocks(torch.full((4,), 0.5), (2, 2, 2, 2), 4, none, solver).tolist() == [1, 1, 0, 0]


def test_mandatory_blocks_above_the_budget_are_kept_alone():
    scores, mandatory = torch.tensor([0.1, 0.2, 0.9]), torch.tensor([True, True, False])
    for solver in SOLVERS:
        assert select_blocks(scores, (5, 5, 1), 8, mandatory, solver).tolist() == [True, True, False]


def test_the_whole_budget_keeps_everything():
    scores, sizes, mandatory = problem(0)
    for solver in SOLVERS:
        assert select_blocks(scores, sizes, int(sizes.sum()), mandatory, solver).all()


@pytest.mark.parametrize("solver", ["greedy", "density"])
def test_many_clients_with_their_own_budgets_are_traced_at_once(solver):
    _, sizes, mandatory = problem(0)
    scores = torch.stack([problem(seed, levels=5)[0] for seed in range(6)])
    budgets = torch.tensor([0, 10, 40, 60, 90, 1000])
    together = torch.func.vmap(lambda s, b: select_blocks(s, sizes, b, mandatory, solver))(scores, budgets)
    alone = [select_blocks(s, sizes, int(b), mandatory, solver) for s, b in zip(scores, budgets, strict=True)]
    assert torch.equal(together, torch.stack(alone))


def test_selection_leaves_its_inputs_alone():
    scores, sizes, mandatory = problem(1)
    before = mandatory.clone()
    for solver in SOLVERS:
        select_blocks(scores.requires_grad_(), sizes, 60, mandatory, solver)
    assert torch.equal(mandatory, before)


def test_impossible_selections_are_refused():
    scores, sizes, mandatory = problem(0)
    with pytest.raises(OptionError, match=r"'simplex'.*greedy, density, exact"):
        select_blocks(scores, sizes, 10, mandatory, "simplex")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one entry per block"):
        select_blocks(scores, sizes[1:], 10, mandatory)
