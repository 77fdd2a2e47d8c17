"""Users' own modules: what is found in them, what is left as it is, and that nothing else of them changes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Task
from idiolect.kernels import speed_up
from idiolect.kernels.tracing import trace


class Net(nn.Module):
    """Two convolutions, written as people write them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 4, 3, padding=1)
        self.head = nn.Linear(36, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(self.second(x).relu(), (2, 2))
        return self.head(x.view(x.size(0), -1))


class Blocks(Net):
    def __init__(self):
        super().__init__()
        kinds = ((1, 6), (6, 4))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(*kind, 3, padding=1), nn.ReLU(True)) for kind in kinds)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        for block in self.blocks:
            x = F.max_pool2d(block(x), kernel_size=2, stride=2)
        return self.head(torch.flatten(x, 1)[:, :36] * self.scale)


class Twice(Net):
    """One convolution used twice, whose results are joined."""

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = F.max_pool2d(self.second(x), 2)
        padded = F.pad(x, (0, 0, 0, 0, 0, 2))
        x = x + self.second(padded).detach()
        return self.head(F.adaptive_max_pool2d(x, 3).flatten(1))


class NoGradient(Net):
    def forward(self, x):
        with torch.no_grad():
            x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.head(x.flatten(1))


class Autocast(Net):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = F.max_pool2d(F.relu(self.first(x)), 2)
        return self.head(F.max_pool2d(F.relu(self.second(x.float())), 2).flatten(1))


class Asks(Net):
    def forward(self, x):
        x = super().forward(x)
        return x if torch.is_grad_enabled() else 2 * x


class OtherUser(Net):
    """An in-place ReLU whose input is used again."""

    def forward(self, x):
        before = self.first(x)
        x = F.max_pool2d(F.relu(before, inplace=True), 2) + before[:, :, :6, :6]
        return self.head(F.max_pool2d(F.relu(self.second(x)), 2).flatten(1))


class Drops(Net):
    def forward(self, x):
        x = F.dropout(F.max_pool2d(F.relu(self.first(x)), 2), training=self.training)
        return self.head(F.max_pool2d(F.relu(self.second(x)), 2).flatten(1))


class Branches(Net):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Counts(Net):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Remembers(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        return super().forward(x)


class Makes(Net):
    def forward(self, x):
        return super().forward(x) + torch.arange(3)


class Draws(Net):
    def forward(self, x):
        return super().forward(x) + torch.rand(1)


class Partly(nn.Module):
    """Something that cannot be traced, around something that can."""

    def __init__(self):
        super().__init__()
        self.inner = Net()

    def forward(self, x):
        assert len(x) > 0
        return self.inner(x) if x.mean() < 1e9 else x


INPUT = (1, 14, 14)
FAST = [Net, Blocks, Twice, OtherUser]
AS_IT_IS = [NoGradient, Autocast, Asks, Drops, Branches, Counts, Remembers, Makes, Draws]


def make_task(kind):
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(4, *INPUT, generator=draw), torch.arange(4) % 3
    return Task(kind(), (x, y), classes=3)


def compute(task, train):
    """Loss, outputs, features, buffers and gradients."""
    x, y = task.example
    params = {name: (leaf.clone() + 0.01).requires_grad_() for name, leaf in task.net.params.items()}
    torch.manual_seed(3)
    scored = task.loss(params, task.net.buffers, Batch(x, y, torch.ones(len(y))), train=train)
    grads = torch.autograd.grad(scored.loss, list(params.values()), allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        outputs = task.forward(task.net.params, task.net.buffers, x).outputs
    return [scored.loss, scored.outputs, scored.features, *scored.buffers.values(), *grads, outputs]


@pytest.mark.parametrize("kind", [*FAST, *AS_IT_IS, Partly], ids=lambda kind: kind.__name__)
def test_a_module_computes_the_same_before_and_after(kind):
    plain, fast = make_task(kind), make_task(kind)
    speed_up(fast)
    for train in (True, False):
        for a, b in zip(compute(plain, train), compute(fast, train), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    changed = [name for name, child in fast.net.module.named_modules() if "forward" in vars(child)]
    if kind in FAST:
        assert changed == [""]
    elif kind is Partly:
        assert changed == ["inner"]
    else:
        assert "" not in changed
        assert all(isinstance(dict(fast.net.module.named_modules())[name], nn.Conv2d) for name in changed)


def test_names_hooks_and_copies_stay():
    task = make_task(Blocks)
    before = [name for name, _ in task.net.module.named_modules()], list(task.net.module.state_dict())
    speed_up(task)
    module, seen = task.net.module, []
    assert ([name for name, _ in module.named_modules()], list(module.state_dict())) == before
    module.register_forward_hook(lambda *_: seen.append(1))
    other = copy.deepcopy(module)
    with torch.no_grad():
        for leaf in other.parameters():
            leaf.zero_()
    x = task.example[0]
    assert not other(x).any()
    assert module(x).any()
    assert seen == [1, 1]


def test_a_module_with_hooks_of_its_own_keeps_them():
    """It stays one operation of what is around it, and what is inside is found."""
    calls = []

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Net()
            self.inner.register_forward_hook(lambda *_: calls.append(1))

        def forward(self, x):
            return self.inner(x) * 2

    task = make_task(Around)
    speed_up(task)
    calls.clear()
    task.net.module(task.example[0])
    assert calls == [1]
    assert "forward" in vars(task.net.module.inner)


def test_the_graph_of_layers_and_of_functions_is_the_same():
    class Functions(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.b(F.relu(self.a(torch.flatten(x, 1))))

    layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    names = [[node.name.rstrip("_1") for node in trace(m).nodes if "call" in node.op] for m in (layers, Functions())]
    assert names == [["flatten", "linear", "relu", "linear"]] * 2
