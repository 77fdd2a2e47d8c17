"""Ordinary modules on every engine: what the loop can train, the others train as well, stacked where PyTorch has a rule
for it, and otherwise one by one with a reason."""

from dataclasses import dataclass, replace
from itertools import cycle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from idiolect.contract import Method, Training, methods
from idiolect.data import Client, Federation
from idiolect.engines import Loop, Plan, choice, engines
from idiolect.engines.stackability import why_not_stackable
from idiolect.task.task import Task
from idiolect.testing import play, require_equal

SIZES = (7, 7, 5)


class Image(nn.Module):
    """A body on images [batch, 2, 6, 6], which gives 4 channels, under a linear head."""

    def __init__(self):
        super().__init__()
        self.build()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x).flatten(2).mean(2))


class GroupNormResNet(Image):
    def build(self):
        self.stem, self.first, self.second = (nn.Conv2d(n, 4, 3, padding=1) for n in (2, 4, 4))
        self.norms = nn.ModuleList(nn.GroupNorm(2, 4) for _ in range(3))
        self.shortcut = nn.Conv2d(4, 4, 1, stride=2, bias=False)

    def body(self, x):
        x = F.relu(self.norms[0](self.stem(x)))
        x = x + F.relu(self.norms[1](self.first(x)))
        return F.relu(F.max_pool2d(self.norms[2](self.second(x)), 2) + self.shortcut(x))


class InstanceNorm(Image):
    def build(self):
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)

    def body(self, x):
        return F.relu(self.norm(self.conv(x)))


class TrackingInstanceNorm(InstanceNorm):
    def build(self):
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)


class Depthwise(Image):
    def build(self):
        self.depth, self.point = nn.Conv2d(2, 4, 3, groups=2, padding="same"), nn.Conv2d(4, 4, 1)

    def body(self, x):
        return F.gelu(self.point(F.silu(self.depth(x))))


class Transposed(Image):
    def build(self):
        self.down, self.up = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 4, 2, stride=2)

    def body(self, x):
        x = self.up(F.relu(self.down(x)))
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class BatchNormAndPool(Image):
    def build(self):
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)
        )

    def body(self, x):
        return self.layers(x)


class ResidualBatchNorm(Image):
    def build(self):
        self.stem, self.conv = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def body(self, x):
        x = self.stem(x)
        return F.max_pool2d(F.relu(self.norm(self.conv(x)) + x), 2)


class ChannelsLastNorm(Image):
    def build(self):
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.LayerNorm(4)

    def body(self, x):
        return F.gelu(self.norm(self.conv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Views(Image):
    """`view` after a convolution, in a module that cannot be traced: it needs the usual memory format."""

    def build(self):
        self.conv = nn.Conv2d(2, 4, 3)

    def body(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return x.view(len(x), -1).view(x.shape)


class WeightNorm(Image):
    def build(self):
        self.conv = parametrizations.weight_norm(nn.Conv2d(2, 4, 3))

    def body(self, x):
        return torch.relu(self.conv(x))


class OwnBatchStatistics(Image):
    """What it computes for one sample depends on the others, without a layer that says so."""

    def build(self):
        self.conv = nn.Conv2d(2, 4, 3)

    def body(self, x):
        x = self.conv(x)
        return torch.relu(x - x.mean(0, keepdim=True))


class Dense(nn.Module):
    """On vectors [batch, 6]."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class FunctionalDropout(Dense):
    def forward(self, x):
        return self.head(F.dropout(torch.relu(self.body(x)), 0.5, training=self.training))


class DropoutLayer(Dense):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.body(x))))


class LooksAtValues(Dense):
    def forward(self, x):
        x = self.body(x)
        return self.head(torch.relu(x) if x.mean() > 0 else torch.tanh(x))


class TakesItem(Dense):
    def forward(self, x):
        return self.head(torch.relu(self.body(x)) * (1 + 0.1 * (x > 0).sum().item() / x.numel()))


class InPlace(Dense):
    def forward(self, x):
        x = F.relu(self.body(x), inplace=True) * 1.0
        x[:, 0] *= 2
        return self.head(x.add_(1.0))


class Tied(Dense):
    def __init__(self):
        super().__init__()
        self.again = nn.Linear(6, 4)
        self.again.weight = self.body.weight

    def forward(self, x):
        return self.head(torch.relu(self.body(x)) + torch.tanh(self.again(x)))


class Frozen(Dense):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x):
        return super().forward(torch.relu(self.first(x)))


class NoDropout(nn.Module):
    """Dropout of nothing, wherever there is one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 4), nn.AlphaDropout(0), nn.ReLU(), nn.Dropout1d(0))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layers(x))


class Series(nn.Module):
    """On series [batch, 5, 4]."""

    def __init__(self):
        super().__init__()
        self.build()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


class Convolved(Series):
    def build(self):
        self.conv = nn.Conv1d(4, 4, 3, padding=1)

    def body(self, x):
        return torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)


class Bidirectional(Series):
    def build(self):
        self.lstm = nn.LSTM(4, 2, bidirectional=True, batch_first=True)

    def body(self, x):
        return self.lstm(x)[0]


class Attention(Series):
    def build(self):
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def body(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]


class Transformer(Series):
    def build(self):
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)

    def body(self, x):
        return self.layer(x)


class RandomAttention(Series):
    def build(self):
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)

    def body(self, x):
        return x + self.attention(x, x, x)[0]


class Bag(nn.Module):
    """On tokens [batch, 5]."""

    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 4, mode="mean"), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.bag(x)))


INPUTS = {Image: (2, 6, 6), Dense: (6,), NoDropout: (6,), Series: (5, 4)}
STACKED = [GroupNormResNet, InstanceNorm, TrackingInstanceNorm, Depthwise, Transposed, BatchNormAndPool, WeightNorm]
STACKED += [
    ResidualBatchNorm,
    ChannelsLastNorm,
    Views,
    OwnBatchStatistics,
    InPlace,
    Tied,
    Frozen,
    NoDropout,
    Convolved,
    Attention,
    Transformer,
    Bag,
]
REASONS = {
    FunctionalDropout: "draws random numbers",
    DropoutLayer: "has a Dropout",
    LooksAtValues: "looks at the values of tensors",
    TakesItem: "looks at the values of tensors",
    Bidirectional: "has a LSTM",
    RandomAttention: "draws random numbers",
}


def make_plan(kind, method="fedavg"):
    """Three clients of the module's inputs, two of them of one size."""
    draw = torch.Generator().manual_seed(3)
    clients = []
    for number, size in enumerate(SIZES):
        total = size + 4
        if kind is Bag:
            x = torch.randint(0, 9, (total, 5), generator=draw)
        else:
            shape = next(shape for base, shape in INPUTS.items() if issubclass(kind, base))
            x = torch.randn(total, *shape, generator=draw)
        train, val, test = torch.split(torch.arange(total), [size, 2, 2])
        y = torch.randint(0, 3, (total,), generator=draw)
        clients.append(Client(f"c{number}", x, y, train, val, test))
    torch.manual_seed(0)
    task = Task(kind(), (clients[0].x[:2], clients[0].y[:2]), classes=3)
    data = Federation(tuple(clients), "own", 3, "given", "0" * 12)
    training = Training(lr=0.1, batch_size=4)
    return Plan(methods.build(method), (task,), data, 1, training)


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("kind", [*STACKED, *REASONS], ids=lambda kind: kind.__name__)
def test_every_engine_trains_what_the_loop_trains(kind, caplog):
    """Stacked, or one by one with a reason in the log."""
    reason = REASONS.get(kind, "")
    reference = play(make_plan(kind))
    for text in ("workers(count=1)", "vector(chunk=3, count=1)"):
        require_equal(reference, play(make_plan(kind), engines.build(text).make), text, 1e-3)
    assert caplog.text.count("one by one") == bool(reason)
    assert reason in caplog.text


OTHER_METHODS = [
    *zip([*STACKED, *REASONS], cycle(["fedrep", "ditto", "scaffold"]), strict=False),
    *((kind, "fedrep") for kind in (ResidualBatchNorm, BatchNormAndPool, TrackingInstanceNorm, Tied, Frozen)),
]
"""Phases that train a part, two models per client, and a state of the server's: one of them with each module, and the
first with all whose statistics or parameters are not each their own."""


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize(
    ("kind", "method"), dict.fromkeys(OTHER_METHODS), ids=lambda each: getattr(each, "__name__", each)
)
def test_every_engine_trains_it_by_other_methods(kind, method, caplog):
    reference = play(make_plan(kind, method))
    for text in ("workers(count=1)", "vector(chunk=3, count=1)"):
        require_equal(reference, play(make_plan(kind, method), engines.build(text).make), text, 1e-3)
    assert caplog.text.count("one by one") == (kind in REASONS)


@pytest.mark.parametrize("method", ["ditto", "fedper", "pfedgate", "fedlag"])
@pytest.mark.parametrize("kind", [GroupNormResNet, LooksAtValues], ids=lambda kind: kind.__name__)
def test_auto_trains_what_the_loop_trains(method, kind, monkeypatch, caplog):
    monkeypatch.setattr(choice, "WORTHWHILE", 0.0)
    monkeypatch.setattr(choice, "SHARE", 1e9)
    monkeypatch.setattr(choice, "cores", lambda: 1)
    caplog.set_level("INFO", "idiolect")
    played = play(make_plan(kind, method), lambda plan: choice.make_engine("auto", plan))
    require_equal(play(make_plan(kind, method)), played, "auto", 1e-3)
    assert ("auto leaves out the engine vector" in caplog.text) == (kind is LooksAtValues)


def test_auto_leaves_out_an_engine_that_fails(monkeypatch, caplog):
    """In training or in evaluation; where all others fail, there is the loop."""

    class Failing(Loop):
        def __init__(self, plan, count=None, chunk=0):
            super().__init__(plan)
            self.chunk = chunk

        def train(self, *args):
            if self.chunk:
                raise RuntimeError("stacks fail")
            return super().train(*args)

        def evaluate(self, *args):
            raise RuntimeError("evaluation fails\nin many lines")

    monkeypatch.setattr(choice, "WORTHWHILE", 0.0)
    monkeypatch.setattr(choice, "SHARE", 1e9)
    monkeypatch.setattr(choice, "cores", lambda: 2)
    monkeypatch.setattr(choice, "Workers", Failing)
    chosen, seconds = choice.calibrate(make_plan(Dense))
    assert chosen == "loop"
    assert list(seconds) == ["loop"]
    assert "auto leaves out the engine workers(count=2), which failed: evaluation fails\n" in caplog.text
    assert "which failed: stacks fail" in caplog.text


@dataclass(frozen=True)
class Late(Method):
    """FedAvg, but from the second round on it looks at values."""

    def step(self, ctx, work, batch):
        if ctx.round > 0 and bool(batch.x.sum() > 1e9):
            return work
        return super().step(ctx, work, batch)


def test_what_cannot_be_stacked_in_a_later_round_is_run_one_by_one(caplog):
    plan = replace(make_plan(Depthwise), method=Late(), rounds=3)
    assert why_not_stackable(plan) == ""
    played = play(plan, engines.build("vector(chunk=3, count=1)").make)
    require_equal(play(plan), played, "vector", 1e-3)
    assert caplog.text.count("one by one: it looks at the values of tensors") == 1


class Remembers(Dense):
    """It keeps what it saw, outside of its buffers."""

    def forward(self, x):
        self.seen = x
        return super().forward(x)


def test_the_trial_step_leaves_the_model_as_it_is():
    plan = make_plan(Remembers)
    before = plan.tasks[0].net.module.seen
    state = torch.get_rng_state()
    assert why_not_stackable(plan) == ""
    assert plan.tasks[0].net.module.seen is before
    assert torch.equal(torch.get_rng_state(), state)


def test_clients_of_different_sizes_share_a_stack_only_where_padding_does_not_show():
    for kind in (GroupNormResNet, InstanceNorm, Attention, Bag, Frozen):
        assert not make_plan(kind).mixes_samples, kind
    for kind in (BatchNormAndPool, TrackingInstanceNorm, OwnBatchStatistics):
        assert make_plan(kind).mixes_samples, kind
