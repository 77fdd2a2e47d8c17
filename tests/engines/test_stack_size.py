"""How many clients are stacked: by caches on a processor, by free memory on a GPU, which none here has; so the query
of a device is replaced."""

from dataclasses import replace

import pytest
import torch

from idiolect.engines import stack_size
from idiolect.engines.stack_size import MOST, MOST_ON_GPU, SHARE, client_bytes, fit_chunk, fit_memory, limit_chunk
from idiolect.engines.stacking import Stack, train_stack
from idiolect.testing import play, require_equal, tiny_plan


@pytest.fixture
def free(monkeypatch):
    """Lets a device have so many bytes free."""
    return lambda count: monkeypatch.setattr(stack_size, "free_memory", lambda device: count)


def test_on_a_processor_caches_say_how_many_and_nothing_limits_them():
    plan = tiny_plan("fedavg")
    assert fit_chunk(plan) == MOST
    assert limit_chunk(plan, 1000) == 1000


def test_on_a_gpu_free_memory_says_how_many(free):
    plan = tiny_plan("ditto")
    each = client_bytes(plan)
    for count in (1, 7, 100):
        free(int((count + 0.5) * each / SHARE))
        assert fit_chunk(plan) == count
        assert limit_chunk(plan, 10**6) == count
        assert limit_chunk(plan, 1) == 1
    free(int(8.5 * each / SHARE))
    assert limit_chunk(plan, 50, share=0.5) == 4, "half of a GPU has room for half as many"
    assert limit_chunk(plan, 0) == 0, "clients that are not stacked stay so"
    free(1 << 50)
    assert fit_chunk(plan) == MOST_ON_GPU
    assert fit_memory(0, 0) == 1


def test_a_client_needs_more_where_it_keeps_more_or_trains_larger_batches():
    plan = tiny_plan("fedavg")
    assert client_bytes(tiny_plan("ditto")) > client_bytes(plan) > 0
    larger = replace(plan, training=replace(plan.training, batch_size=2 * plan.training.batch_size))
    assert client_bytes(plan) < client_bytes(larger) < 2 * client_bytes(plan)


def test_a_look_at_sizes_leaves_no_trace():
    plan = tiny_plan("fedavg")
    before, passes = torch.get_rng_state(), plan.tasks[0].net.passes
    client_bytes(plan)
    assert torch.equal(torch.get_rng_state(), before)
    assert plan.tasks[0].net.passes == passes


def test_a_stack_that_has_no_room_is_halved(monkeypatch):
    plan, sizes, run = tiny_plan("fedavg", rounds=1), [], Stack.run

    def tight(self):
        sizes.append(len(self.members))
        if len(self.members) > 2:
            raise torch.cuda.OutOfMemoryError("no room")
        return run(self)

    class Stacks:
        """Clients in stacks of five, by this process."""

        def __init__(self, plan):
            self.plan = plan

        def train(self, round, states, download):
            outcomes = list(train_stack(self.plan, round, states, download, 5))
            assert not any(outcome.unstacked for _, outcome in outcomes), "none is run one by one because of it"
            return iter(outcomes)

        def evaluate(self, *arguments):
            return iter(())

        def close(self):
            """Nothing is open."""

    whole = play(plan, Stacks)
    monkeypatch.setattr(Stack, "run", tight)
    halved = play(plan, Stacks)
    assert max(sizes) > 2
    require_equal(whole, halved, "stacks and their halves", 1e-5)
