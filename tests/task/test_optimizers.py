"""Optimisers and schedules, step by step against PyTorch's."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from idiolect.core import tree
from idiolect.task.optimizers import SGD, Adam, Optimizer
from idiolect.task.schedules import Cosine, Custom, Exponential, Schedule, Step, schedules

STEPS = 12
SHAPES = {"weight": (3, 4), "bias": (3,)}
LR = 0.01
CASES = [
    (SGD(), lambda p: torch.optim.SGD(p, LR)),
    (SGD(weight_decay=0.3), lambda p: torch.optim.SGD(p, LR, weight_decay=0.3)),
    (SGD(momentum=0.8), lambda p: torch.optim.SGD(p, LR, momentum=0.8)),
    (SGD(momentum=0.8, weight_decay=0.3), lambda p: torch.optim.SGD(p, LR, momentum=0.8, weight_decay=0.3)),
    (SGD(momentum=0.8, weight_decay=0.3, clip=0.5), lambda p: torch.optim.SGD(p, LR, 0.8, weight_decay=0.3)),
    (Adam(), lambda p: torch.optim.Adam(p, LR)),
    (Adam(beta1=0.6, beta2=0.95), lambda p: torch.optim.Adam(p, LR, (0.6, 0.95))),
    (Adam(beta1=0.0), lambda p: torch.optim.Adam(p, LR, (0.0, 0.999))),
    (Adam(eps=0.1), lambda p: torch.optim.Adam(p, LR, eps=0.1)),
    (Adam(weight_decay=0.3), lambda p: torch.optim.Adam(p, LR, weight_decay=0.3)),
    (Adam(amsgrad=True, beta2=0.7), lambda p: torch.optim.Adam(p, LR, (0.9, 0.7), amsgrad=True)),
    (
        Adam(amsgrad=True, beta1=0.6, beta2=0.7, eps=0.01, weight_decay=0.3, clip=0.5),
        lambda p: torch.optim.Adam(p, LR, (0.6, 0.7), eps=0.01, weight_decay=0.3, amsgrad=True),
    ),
]


def draw(dtype: torch.dtype, seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: scale * torch.randn(shape, generator=generator, dtype=dtype) for n, shape in SHAPES.items()}


def gradients(dtype: torch.dtype) -> list[dict[str, torch.Tensor]]:
    """Gradients that grow and shrink, so that some are clipped and the largest second moment matters."""
    return [draw(dtype, 1 + step, scale=(2.0, 0.1, 0.5)[step % 3]) for step in range(STEPS)]


def step_pytorchs(
    optimizer, leaves: dict[str, nn.Parameter], grads: dict[str, torch.Tensor], clip: float | None
) -> None:
    """A step of PyTorch's optimiser, which changes the leaves."""
    for name, leaf in leaves.items():
        leaf.grad = grads[name].clone()
    if clip is not None:
        nn.utils.clip_grad_norm_(leaves.values(), clip)
    optimizer.step()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=[str(ours) for ours, _ in CASES])
def test_every_step_is_pytorchs(ours: Optimizer, theirs, dtype, tolerance):
    params = draw(dtype, 0)
    leaves = {name: nn.Parameter(leaf.clone()) for name, leaf in params.items()}
    optimizer, state = theirs(leaves.values()), ours.init(params)
    for grads in gradients(dtype):
        step_pytorchs(optimizer, leaves, grads, ours.clip)
        params, state = ours.step(params, grads, state, LR)
        for name, leaf in leaves.items():
            torch.testing.assert_close(params[name], leaf.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=[str(ours) for ours, _ in CASES])
def test_twenty_steps_in_single_precision_are_pytorchs_to_a_millionth(ours: Optimizer, theirs):
    """The length of every step, and not only where it leads to, one client at a time and many at once."""
    params = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    leaves = {name: nn.Parameter(leaf.clone()) for name, leaf in params.items()}
    optimizer, state = theirs(leaves.values()), ours.init(params)
    stacked = {key: tree.stack([each]) for key, each in state.items()}
    step_stack = torch.func.vmap(lambda params, grads, state: ours.step(params, grads, state, LR))
    for step in range(20):
        grads, before = draw(torch.float32, 1 + step), {name: leaf.detach().clone() for name, leaf in leaves.items()}
        step_pytorchs(optimizer, leaves, grads, ours.clip)
        alone, state = ours.step(before, grads, state, LR)
        beside, stacked = step_stack(tree.stack([before]), tree.stack([grads]), stacked)
        for name, leaf in leaves.items():
            for found in (alone[name], beside[name][0]):
                moved, wanted = found - before[name], leaf.detach() - before[name]
                torch.testing.assert_close(moved, wanted, rtol=1e-6, atol=1e-6 * LR)


def test_adams_first_step_has_the_length_of_the_learning_rate():
    """|m / (1 - beta1)| / sqrt(v / (1 - beta2)) = |g| / |g| = 1, to rounding."""
    params = {"w": torch.zeros(1000)}
    grads = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0))}
    after, _ = Adam(eps=1e-30).step(params, grads, Adam().init(params), 1.0)
    assert float((after["w"].abs() - 1).abs().max()) < 5e-7


def test_a_part_that_has_no_gradient_keeps_its_values_and_its_state():
    params, adam = draw(torch.float64, 0), Adam()
    state = adam.init(params)
    after, later = adam.step(params, {"bias": torch.ones(3, dtype=torch.float64)}, state, LR)
    assert torch.equal(after["weight"], params["weight"])
    assert [float(later["count"][name]) for name in ("weight", "bias")] == [0, 1]
    assert torch.equal(later["first"]["weight"], state["first"]["weight"])


def test_rates_multiply_the_learning_rate_leaf_by_leaf():
    params, grads = draw(torch.float64, 0), draw(torch.float64, 1)
    after, _ = SGD().step(params, grads, {}, 0.1, {"bias": torch.tensor(3.0)})
    assert torch.allclose(after["bias"], params["bias"] - 0.3 * grads["bias"])
    assert torch.allclose(after["weight"], params["weight"] - 0.1 * grads["weight"])


def test_nothing_is_changed_in_place():
    params, grads, adam = draw(torch.float32, 0), draw(torch.float32, 1), Adam(amsgrad=True, weight_decay=0.1, clip=0.1)
    state = adam.init(params)
    before = [leaf.clone() for leaves in (params, grads, *state.values()) for leaf in leaves.values()]
    adam.step(params, grads, state, LR)
    after = [leaf for leaves in (params, grads, *state.values()) for leaf in leaves.values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("optimizer", "needed"),
    [(SGD(), True), (SGD(clip=1.0), True), (SGD(momentum=0.1), False), (SGD(weight_decay=0.1), False), (Adam(), False)],
)
def test_whether_a_coordinate_without_gradient_stays_where_it_is(optimizer: Optimizer, needed: bool):
    """PyTorch's own steps say so: after one gradient, a second one of zero."""
    params, state = draw(torch.float64, 0), optimizer.init(draw(torch.float64, 0))
    once, state = optimizer.step(params, draw(torch.float64, 1), state, LR)
    twice, _ = optimizer.step(once, {name: torch.zeros_like(leaf) for name, leaf in once.items()}, state, LR)
    assert optimizer.needs_gradient == needed == all(torch.equal(leaf, twice[name]) for name, leaf in once.items())


ROUNDS = 20


def pytorchs(build) -> list[float]:
    """The learning rates that a scheduler of PyTorch gives, one per round, beginning at 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    scheduler, rates = build(optimizer), []
    for _ in range(ROUNDS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "build"),
    [
        (Schedule(), lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        (Cosine(), lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS)),
        (Cosine(final=0.2), lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS, eta_min=0.2)),
        (Exponential(gamma=0.8), lambda o: lr_scheduler.ExponentialLR(o, 0.8)),
        (Step(), lambda o: lr_scheduler.MultiStepLR(o, [15], 0.1)),
        (Step(at=(0.25, 0.5), gamma=0.3), lambda o: lr_scheduler.MultiStepLR(o, [5, 10], 0.3)),
        (
            Custom(function=lambda round, rounds: 1 / (1 + round)),
            lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_rounds_factor_is_pytorchs(schedule: Schedule, build):
    ours = [schedule.factor(round, ROUNDS) for round in range(ROUNDS)]
    assert ours == pytest.approx(pytorchs(build), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", list(schedules))
def test_a_run_of_no_rounds_has_a_factor(name):
    assert math.isfinite(schedules.build(name).factor(0, 0))
