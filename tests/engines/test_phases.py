"""The batches of a phase: how many, in which order, with which noise, and what its context knows."""

import math
from dataclasses import replace

import pytest
import torch

from idiolect.contract import Phase
from idiolect.engines.phases import batches, count_passes, draw_order, error_context, run_phases
from idiolect.task.optimizers import SGD
from idiolect.testing import tiny_plan
from idiolect.testing.scalar import context_of, start_training


def in_phase(plan, index=0, round=0, **fields):
    """A client's context in a phase with these fields."""
    return replace(context_of(plan, index=index, round=round), phase=Phase(plan.method.step, **fields))


def order(plan, index=0, round=0, epoch=0, stream="train", **fields):
    """The order of one pass over ten samples."""
    return draw_order(in_phase(plan, index, round, **fields), 10, 10, stream, epoch).tolist()


# -- how many --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "length", "wanted"),
    [
        ({}, 14, (14, 4, 4, 8)),
        ({}, 12, (12, 4, 3, 6)),
        ({}, 3, (3, 4, 1, 2)),
        ({}, 0, (0, 4, 0, 0)),
        ({"epochs": 1}, 14, (14, 4, 4, 4)),
        ({"epochs": 0}, 14, (14, 4, 4, 0)),
        ({"batch_size": 5}, 14, (14, 5, 3, 6)),
        ({"steps": 7}, 14, (14, 4, 4, 7)),
        ({"steps": 7}, 0, (0, 4, 0, 0)),
        ({"samples": 6}, 14, (6, 4, 2, 4)),
        ({"samples": 20}, 14, (14, 4, 4, 8)),
        ({"samples": 0.5}, 9, (5, 4, 2, 4)),
        ({"samples": 1.0}, 9, (9, 4, 3, 6)),
    ],
)
def test_samples_batch_size_batches_per_pass_and_steps(fields, length, wanted):
    """The run has batches of 4 and 2 epochs; a phase may say otherwise."""
    plan = tiny_plan("fedavg")
    assert count_passes(plan, Phase(plan.method.step, **fields), plan.tasks[0], length) == wanted


@pytest.mark.parametrize(("length", "per_epoch"), [(1, 0), (4, 1), (5, 1), (6, 2)])
def test_under_batch_normalisation_a_last_batch_of_one_is_dropped(length, per_epoch):
    plan = tiny_plan("fedavg", norm=True)
    passes = count_passes(plan, Phase(plan.method.step), plan.tasks[0], length)
    assert passes == (length, 4, per_epoch, 2 * per_epoch)


@pytest.mark.parametrize(("method", "norm"), [("fedavg", True), ("pfedgate", False)])
@pytest.mark.parametrize("length", [1, 5])
def test_a_phase_that_trains_nothing_looks_at_all_samples(method, norm, length):
    """Neither batch normalisation nor a method that trains on two samples or more keeps it from a last one."""
    plan = tiny_plan(method, norm=norm)
    looking = Phase(plan.method.step, slots=(), epochs=1)
    assert count_passes(plan, looking, plan.tasks[0], length).steps == math.ceil(length / 4)
    assert count_passes(plan, Phase(plan.method.step, epochs=1), plan.tasks[0], length).steps == length // 4


def test_a_phase_that_trains_nothing_counts_no_steps():
    plan = tiny_plan("fedavg")
    ctx, work = start_training(plan)
    looking = Phase(lambda ctx, work, batch: work, slots=())
    assert [run_phases(plan, ctx, phases, work)[1] for phases in ([looking], [ctx.phase], [looking, ctx.phase])] == [
        0,
        8,
        8,
    ]


def test_what_a_phase_does_before_its_first_step_is_done_once():
    """The context is that of the phase, at its beginning."""
    plan, seen = tiny_plan("fedavg"), []
    ctx, work = start_training(plan)

    def before(ctx, work):
        seen.append((ctx.phase.name, ctx.step, ctx.noise))
        return {**work, "mark": {}}

    looking = Phase(lambda ctx, work, batch: work, "looking", slots=(), before=before)
    late = replace(ctx, step=3, noise={"e": torch.ones(1)})
    after, _ = run_phases(plan, late, [ctx.phase, looking], work)
    assert seen == [("looking", 0, {})]
    assert "mark" in after


# -- in which order --------------------------------------------------------------------------------------


def test_every_pass_has_every_sample_once_in_an_order_of_its_own():
    plan = tiny_plan("fedavg")
    found = list(batches(plan, in_phase(plan), 0))
    assert [(ctx.step, len(batch.x)) for ctx, batch in found] == 2 * list(enumerate((4, 4, 4, 2)))
    assert all(torch.equal(batch.weight, torch.ones(len(batch.x))) for _, batch in found)
    (x, y), halves = plan.split(0, "train"), (found[:4], found[4:])
    first, second = (torch.cat([batch.x for _, batch in half]) for half in halves)
    assert {tuple(row) for row in first.tolist()} == {tuple(row) for row in x.tolist()}
    assert not torch.equal(first, second)
    labels = dict(zip(map(tuple, x.tolist()), y.tolist(), strict=True))
    assert all(labels[tuple(row)] == int(label) for _, b in found for row, label in zip(b.x.tolist(), b.y, strict=True))


def test_a_phase_of_so_many_steps_counts_them_through_and_goes_on_to_the_next_pass():
    """Four batches per pass: the fifth step has the first batch of the second pass."""
    plan = tiny_plan("fedavg")
    found = list(batches(plan, in_phase(plan, steps=6), 0))
    assert [ctx.step for ctx, _ in found] == list(range(6))
    by_epochs = [batch.x for _, batch in batches(plan, in_phase(plan), 0)]
    assert all(torch.equal(batch.x, by_epochs[step]) for step, (_, batch) in enumerate(found))


def test_at_most_so_many_samples_are_the_first_of_the_order():
    plan = tiny_plan("fedavg")
    some, every = ([b.x for _, b in batches(plan, in_phase(plan, **fields), 0)] for fields in ({"samples": 6}, {}))
    assert [len(x) for x in some] == [4, 2, 4, 2]
    assert torch.equal(torch.cat(some[:2]), torch.cat(every[:2])[:6])


def test_the_order_depends_on_seed_stream_round_client_and_pass_alone():
    plan = tiny_plan("fedavg")
    usual = order(plan)
    assert sorted(usual) == list(range(10))
    assert order(plan, name="another", slots=(), lr=0.5) == usual
    others = [
        order(tiny_plan("fedavg", seed=1)),
        order(plan, stream="another"),
        order(plan, round=1),
        order(plan, index=1),
        order(plan, epoch=1),
    ]
    assert len({tuple(each) for each in (usual, *others)}) == 6


def test_with_several_streams_a_step_gets_a_batch_of_each():
    plan = tiny_plan("fedavg")
    both = [batch for _, batch in batches(plan, in_phase(plan, stream=("train", "another")), 0)]
    alone = [[b.x for _, b in batches(plan, in_phase(plan, stream=stream), 0)] for stream in ("train", "another")]
    for at, xs in enumerate(zip(*alone, strict=True)):
        assert all(torch.equal(batch.x, x) for batch, x in zip(both[at], xs, strict=True))
    assert not torch.equal(alone[0][0], alone[1][0])
    assert [len(batch) for _, batch in batches(plan, in_phase(plan, stream=("train",)), 0)] == [1] * 8


def test_public_data_come_in_one_order_for_all_clients():
    """It is nobody's order of own data."""
    plan = tiny_plan("fedavg")
    assert order(plan, index=0, data="public") == order(plan, index=1, data="public")
    assert all(order(plan, index=0, data="public") != order(plan, index=index) for index in range(5))


def test_the_next_public_data_have_the_order_of_the_next_round():
    plan = tiny_plan("fedavg")
    ahead = order(plan, round=1, data="next public")
    assert ahead == order(plan, round=2, data="public") != order(plan, round=1, data="public")
    assert plan.split(0, "next public")[0] is not None


# -- randomness, the optimiser, errors -------------------------------------------------------------------


def test_noise_is_drawn_for_each_step_anew_and_the_same_twice():
    """-1 is the batch; it depends on seed, phase, round and client."""
    plan, shapes = tiny_plan("fedavg"), (("e", (-1, 3)), ("f", (2,)))

    def noise(plan=plan, **where):
        return [ctx.noise for ctx, _ in batches(plan, in_phase(plan, noise=shapes, **where), 0)]

    usual = noise()
    assert [(n["e"].shape, n["f"].shape) for n in usual[:4]] == [((size, 3), (2,)) for size in (4, 4, 4, 2)]
    assert len({n["f"][0].item() for n in usual}) == 8
    assert all(torch.equal(a["e"], b["e"]) for a, b in zip(usual, noise(), strict=True))
    others = [noise(tiny_plan("fedavg", seed=1)), noise(name="another"), noise(round=1), noise(index=1)]
    assert len({n[0]["f"][0].item() for n in (usual, *others)}) == 5


def test_random_layers_are_seeded_at_every_pass_by_phase_round_client_and_pass():
    plan = tiny_plan("fedavg")

    def drawn(number=0, **where):
        return [torch.rand(()).item() for _ in batches(plan, in_phase(plan, **where), number)]

    torch.manual_seed(5)
    usual = drawn()
    assert drawn() == usual
    starts = [usual[0], usual[4], drawn(number=1)[0], drawn(round=1)[0], drawn(index=1)[0]]
    assert len(set(starts)) == 5


def test_a_later_phase_goes_on_with_the_optimizer_state_of_an_earlier_one():
    """Momentum 0.5 and gradients of 1: the second of two steps is 1.5 long, in one phase or in two."""
    plan = tiny_plan("fedavg", lr=1.0, optimizer=SGD(momentum=0.5))
    ctx, work = start_training(plan)

    def push(ctx, work, batch):
        grad = ctx.grad(work, "params", batch)
        ones = {name: torch.ones_like(leaf) for name, leaf in grad.tree.items()}
        return ctx.optimize(work, "params", grad.plus(grad.tree, -1.0).plus(ones), batch)

    after, steps = run_phases(plan, ctx, [Phase(push, steps=1)] * 2, work)
    assert steps == 2
    assert all(torch.allclose(work["params"][n] - leaf, torch.tensor(2.5)) for n, leaf in after["params"].items())


def test_an_error_says_once_where_it_happened():
    plan = tiny_plan("fedavg")
    ctx = in_phase(plan, index=1, round=2, name="own")
    outer, inner = error_context(plan, ctx, "evaluation"), error_context(plan, ctx)
    with pytest.raises(ValueError, match="odd") as caught, outer, inner:
        raise ValueError("odd")
    assert caught.value.__notes__ == ["in fedavg: client c1 (1), round 3, phase own"]
    with pytest.raises(ValueError, match="odd") as caught, outer:
        raise ValueError("odd")
    assert caught.value.__notes__ == ["in fedavg: client c1 (1), round 3, evaluation"]
