import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.gradients import Autograd
from idiolect.kernels import find_dense
from idiolect.kernels.dense import Dense
from idiolect.kernels.dense_reading import read_dense


class Functions(nn.Module):
    """Layers and functions, as people write them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(36, 20), nn.Linear(20, 5)

    def forward(self, x):
        x = F.relu(self.first(x.view(x.size(0), -1)))
        return self.second(x)


class Residual(nn.Module):
    """Normalisations, GELUs and two ways that meet, one of them the input's."""

    def __init__(self):
        super().__init__()
        self.norm, self.start = nn.LayerNorm(17), nn.Linear(17, 33)
        self.body = nn.Sequential(
            nn.LayerNorm(33, eps=1e-3, bias=False), nn.Linear(33, 40), nn.GELU(), nn.Linear(40, 33)
        )
        self.shortcut, self.head = nn.Linear(17, 33, bias=False), nn.Linear(33, 4)

    def forward(self, x):
        y = F.gelu(self.start(self.norm(x)))
        y = y + self.body(y)
        y += torch.relu(self.shortcut(x))
        return self.head(y + y)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(11, 19), nn.Linear(19, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.relu(self.body(self.embed(x).mean(dim=1))))


torch.manual_seed(0)
NETWORKS = {
    "two layers": nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 5)),
    "one layer": nn.Sequential(nn.Linear(3, 2)),
    "no biases": nn.Sequential(nn.Linear(17, 33, bias=False), nn.ReLU(), nn.Linear(33, 10, bias=False)),
    "deep": nn.Sequential(
        nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 70), nn.Linear(70, 16), nn.ReLU(), nn.Linear(16, 3)
    ),
    "functions": Functions(),
    "residual": Residual(),
    "tokens": Tokens(),
}
INPUTS = {
    "two layers": (4, 9),
    "one layer": (3,),
    "no biases": (17,),
    "deep": (64,),
    "functions": (4, 9),
    "residual": (17,),
}


def make(name, samples, kind="compiled"):
    torch.manual_seed(0)
    module = NETWORKS[name]
    x = torch.randint(0, 11, (samples, 6)) if name == "tokens" else torch.randn(samples, *INPUTS[name])
    classes = module(x).shape[1]
    batch = Batch(x, torch.arange(samples) % classes, torch.rand(samples).round() + 0.1)
    task = Task(module, (batch.x[:2], batch.y[:2]), classes=classes)
    if kind == "compiled":
        pytest.importorskip("numba")
        dense = find_dense(task)
        assert type(dense).__name__ == "CompiledDense"
        return task, dense, batch
    return task, Dense(tuple(read_dense(task))), batch


@pytest.mark.parametrize("kind", ["compiled", "plain"])
@pytest.mark.parametrize("samples", [1, 7, 16, 32, 45])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_equal_those_of_autograd(network, samples, kind):
    task, dense, batch = make(network, samples, kind)
    grads, scored = Autograd().of_loss(lambda part: task.loss(part["params"], {}, batch), {"params": task.net.params})
    grad = dense.grad("params", task.net.params, batch, None)
    assert list(grad.tree) == list(task.net.params)
    torch.testing.assert_close(grad.tree, grads["params"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grad.scored[:3], scored[:3], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["compiled", "plain"])
def test_only_what_is_trained_has_a_gradient(kind):
    task, dense, batch = make("deep", 9, kind)
    part = frozenset({"3.weight", "3.bias", "5.bias"})
    grads, _ = Autograd().of_loss(
        lambda given: task.loss({**task.net.params, **given["own"]}, {}, batch),
        {"own": {name: task.net.params[name] for name in part}},
    )
    grad = dense.grad("own", task.net.params, batch, part)
    assert set(grad.slots["own"]) == part
    torch.testing.assert_close(grad.slots["own"], grads["own"], rtol=1e-4, atol=1e-6)


def draw_changes(steps, clients, leaves, trees, kind):
    """Factors of the sums that each step adds to the parameters and other trees."""
    changes = torch.zeros(steps, clients, leaves, trees, trees + 1)
    changes[..., 0, -1] = -0.1
    if kind == "own learning rates":
        changes[..., 0, -1] *= 1 + torch.rand(steps, clients, leaves)
    if kind == "pulled":
        changes[..., 0, :] += 0.1 * torch.randn(steps, clients, 1, trees + 1)
    if kind == "summed":  # the gradient enters other trees, too, and the last leaf changes without one
        changes += 0.2 * torch.randn(steps, clients, leaves, trees, trees + 1)
    return changes.numpy()


@pytest.mark.parametrize("kind", ["plain", "own learning rates", "pulled", "summed"])
@pytest.mark.parametrize(
    ("network", "part"),
    [
        *(("no biases", None), ("no biases", frozenset({"2.weight"})), ("residual", None), ("tokens", None)),
        *(("residual", frozenset({"start.bias", "head.weight"})), ("tokens", frozenset({"body.weight", "body.bias"}))),
    ],
)
def test_compiled_steps_are_those_of_pytorch(network, part, kind):
    batches, clients, samples, trees = 3, 3, 13, 1 if kind in ("plain", "own learning rates") else 3
    batch_of = [0, 1, 1, 2]
    x = (
        torch.randint(0, 11, (batches, clients, samples, 6))
        if network == "tokens"
        else torch.randn(batches, clients, samples, 17)
    )
    y = torch.randint(0, 3, (batches, clients, samples))
    batch = Batch(x, y, torch.ones(y.shape))
    batch.weight[:, -1, 5:] = 0
    ends = []
    for how in ("compiled", "plain"):
        task, dense, _ = make(network, samples, how)
        torch.manual_seed(1)
        params = {name: torch.randn(clients, *leaf.shape) / 5 for name, leaf in task.net.params.items()}
        others = torch.randn(clients, trees - 1, sum(leaf[0].numel() for leaf in params.values())) / 5
        changes = draw_changes(len(batch_of), clients, len(dense.names), trees, kind)
        trained = [part is None or name in part for name in dense.names]
        scored = dense.change_(params, others, batch, batch_of, changes, trained)
        ends.append((params, others, scored[:3]))
    torch.testing.assert_close(*ends, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["compiled", "plain"])
def test_a_step_makes_of_all_trees_sums_of_what_was_there(how):
    """One client, one sample x = (1, 0, 2) of class 0, weights and bias zero: the gradient is (-1/2, 1/2) x, and
    w <- 2 w + 3 a - g, a <- w + a / 2 + 2 g, both with w and a as they were: zero and one."""
    _, dense, _ = make("one layer", 2, how)
    params, others = {"0.weight": torch.zeros(1, 2, 3), "0.bias": torch.zeros(1, 2)}, torch.ones(1, 1, 8)
    batch = Batch(torch.tensor([[[[1.0, 0.0, 2.0]]]]), torch.zeros(1, 1, 1, dtype=torch.int64), torch.ones(1, 1, 1))
    sums = torch.tensor([[1.0, 3.0, -1.0], [1.0, -0.5, 2.0]]).expand(1, 1, 2, 2, 3).contiguous().numpy()
    scored = dense.change_(params, others, batch, [0], sums, [True, True])
    torch.testing.assert_close(scored.loss, torch.tensor([[2.0]]).log())
    torch.testing.assert_close(params["0.weight"][0], torch.tensor([[3.5, 3.0, 4.0], [2.5, 3.0, 2.0]]))
    torch.testing.assert_close(params["0.bias"][0], torch.tensor([3.5, 2.5]))
    torch.testing.assert_close(others.flatten(), torch.tensor([-0.5, 0.5, -1.5, 1.5, 0.5, 2.5, -0.5, 1.5]))


@pytest.mark.parametrize("how", ["compiled", "plain"])
def test_a_pull_between_equal_numbers_moves_nothing(how):
    """Without a gradient, w <- w - c (w - a) leaves w to the bit where it is a."""
    _, dense, _ = make("one layer", 2, how)
    params = {"0.weight": torch.randn(1, 2, 3), "0.bias": torch.randn(1, 2)}
    start = {name: leaf.clone() for name, leaf in params.items()}
    others = torch.cat([leaf.flatten(1) for leaf in params.values()], 1)[:, None].clone()
    batch = Batch(torch.ones(1, 1, 1, 3), torch.zeros(1, 1, 1, dtype=torch.int64), torch.ones(1, 1, 1))
    pull = torch.tensor([[-0.3, 0.3, 0.0], [0.0, 0.0, 0.0]]).expand(9, 1, 2, 2, 3).contiguous().numpy()
    dense.change_(params, others, batch, [0] * 9, pull, [True, True])
    torch.testing.assert_close(params, start, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["compiled", "plain"])
def test_a_tree_that_is_set_to_another_keeps_nothing_of_what_it_was(how):
    """The first client's w becomes a and its a becomes w / 2, to the bit, whatever their size; the second's stay."""
    _, dense, _ = make("one layer", 2, how)
    params = {"0.weight": 1e8 + torch.randn(2, 2, 3), "0.bias": 1e8 + torch.randn(2, 2)}
    others = torch.randn(2, 1, 8) / 1e3
    was, small = {name: leaf.clone() for name, leaf in params.items()}, others.clone()
    batch = Batch(torch.ones(1, 2, 1, 3), torch.zeros(1, 2, 1, dtype=torch.int64), torch.ones(1, 2, 1))
    changes = torch.zeros(1, 2, 2, 2, 3)
    changes[:, 0] = torch.tensor([[-1.0, 1.0, 0.0], [0.5, -1.0, 0.0]])
    dense.change_(params, others, batch, [0], changes.numpy(), [True, True])
    assert torch.equal(torch.cat([leaf[0].flatten() for leaf in params.values()]), small[0, 0])
    assert torch.equal(others[0, 0], torch.cat([leaf[0].flatten() for leaf in was.values()]) / 2)
    assert torch.equal(others[1], small[1])
    assert all(torch.equal(leaf[1], was[name][1]) for name, leaf in params.items())


def test_clients_that_are_traced_as_one_are_computed_together(monkeypatch):
    dense_compiled = pytest.importorskip("idiolect.kernels.dense_compiled", reason="numba is not installed")
    task, dense, batch = make("two layers", 8)
    calls, compute = [], dense_compiled.gradients_of_stack
    monkeypatch.setattr(
        dense_compiled,
        "gradients_of_stack",
        lambda leaves, *args: calls.append(len(leaves[0])) or compute(leaves, *args),
    )
    stacks = {name: torch.stack([leaf, 2 * leaf, -leaf]) for name, leaf in task.net.params.items()}
    together = torch.func.vmap(lambda params: dense.grad("params", params, batch, None).tree)(stacks)
    for row in range(3):
        alone = dense.grad("params", {name: leaf[row] for name, leaf in stacks.items()}, batch, None).tree
        torch.testing.assert_close({name: leaf[row] for name, leaf in together.items()}, alone, rtol=0, atol=0)
    assert calls == [3, 1, 1, 1]


def test_all_networks_share_what_is_compiled():
    """Compiling takes many seconds; what is compiled anew for every kind of network is found by this."""
    dense_steps = pytest.importorskip("idiolect.kernels.dense_steps", reason="numba is not installed")
    for name in NETWORKS:
        task, dense, batch = make(name, 3)
        dense.grad("params", task.net.params, batch, None)
    assert len(dense_steps.run_steps.signatures) == 1


def test_a_failure_of_the_compiled_steps_is_said(monkeypatch, caplog):
    dense_compiled = pytest.importorskip("idiolect.kernels.dense_compiled", reason="numba is not installed")
    task, _, _ = make("one layer", 3)
    with monkeypatch.context() as patch, caplog.at_level("WARNING", "idiolect"):
        patch.setattr(dense_compiled, "run_steps", lambda *args: 1 / 0)
        assert find_dense(task.twin()) is None
    assert "faster ones failed: division by zero" in caplog.text


def test_what_is_not_a_number_stays_that():
    task, dense, batch = make("two layers", 8)
    batch.x[3, 2, 1] = torch.nan
    grad = dense.grad("params", task.net.params, batch, None)
    assert grad.scored.loss.isnan()
    assert grad.tree["3.weight"].isnan().any()


def test_targets_and_inputs_that_do_not_fit_are_errors_and_touch_no_memory():
    task, dense, batch = make("two layers", 8)
    with pytest.raises(IndexError, match="not among the classes"):
        dense.grad("params", task.net.params, batch._replace(y=batch.y + 3), None)
    with pytest.raises(RuntimeError, match="shape"):
        dense.grad("params", task.net.params, batch._replace(x=torch.randn(8, 35)), None)


def test_tokens_that_have_no_embedding_are_errors():
    task, dense, batch = make("tokens", 8)
    for token in (-1, 11):
        batch.x[3, 2] = token
        with pytest.raises(IndexError, match="not among those"):
            dense.grad("params", task.net.params, batch, None)


def test_without_numba_and_in_double_precision_it_is_pytorch(monkeypatch):
    task, dense, batch = make("two layers", 8)
    assert type(dense).__name__ == "CompiledDense"
    double = {name: leaf.double() for name, leaf in task.net.params.items()}
    double_grad = dense.grad("params", double, batch._replace(x=batch.x.double(), weight=batch.weight.double()), None)
    assert double_grad.tree["1.weight"].dtype == torch.float64
    monkeypatch.setitem(sys.modules, "idiolect.kernels.dense_compiled", None)
    assert type(find_dense(task.twin())) is Dense


@pytest.mark.parametrize("network", ["two layers", "residual"])
def test_gradients_can_be_differentiated_again_and_traced_twice(network):
    """Inside of other transforms of `torch.func`, PyTorch computes the gradient."""
    task, dense, batch = make(network, 8)
    plain, stacks = (
        Dense(dense.operations),
        {name: torch.stack([leaf, -leaf]) for name, leaf in task.net.params.items()},
    )

    def norm(network):
        def of_params(params):
            return sum(leaf.square().sum() for leaf in network.grad("params", params, batch, None).tree.values())

        return of_params

    def norms(network):
        return lambda params: torch.func.vmap(norm(network))(params).sum()

    def twice(network):
        def gradients(params, scale):
            scaled = {name: scale * leaf for name, leaf in params.items()}
            return network.grad("params", scaled, batch, None).tree

        inner = torch.func.vmap(gradients, (None, 0))
        return lambda params: torch.func.vmap(inner, (0, None))(params, torch.tensor([1.0, 2.0, 3.0]))

    for nested in (
        lambda network: torch.func.vmap(torch.func.grad(norm(network))),
        lambda network: torch.func.grad(norms(network)),
        twice,
    ):
        torch.testing.assert_close(nested(dense)(stacks), nested(plain)(stacks), rtol=1e-4, atol=1e-6)


class Odd(Functions):
    """What a graph does not show, or a dense network does not compute."""

    def __init__(self, forward):
        super().__init__()
        self.compute = forward

    def forward(self, x):
        return self.compute(self, x.flatten(1))


def without_gradient(net, x):
    with torch.no_grad():
        x = net.first(x)
    return net.second(F.relu(x))


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.second(torch.tanh(net.first(x))),
        lambda net, x: net.second(F.relu(net.first(x))).relu(),
        lambda net, x: net.second(F.relu(net.first(x))) * 2,
        lambda net, x: net.second(F.relu(net.first(x)) + 1),
        lambda net, x: net.second(F.gelu(net.first(x), approximate="tanh")),
        lambda net, x: F.linear(F.relu(net.first(x)), net.second.weight),
        lambda net, x: net.second(F.dropout(F.relu(net.first(x)), 0.5, net.training)),
        without_gradient,
    ],
)
def test_anything_else_is_left_to_pytorch(forward):
    x, y = torch.randn(4, 36), torch.tensor([0, 1, 2, 3])
    assert find_dense(Task(Odd(forward), (x, y), classes=5)) is None


def test_a_head_that_is_not_the_last_layer_has_its_own_features():
    x, y = torch.randn(4, 36), torch.tensor([0, 1, 2, 3])
    assert find_dense(Task(Functions(), (x, y), classes=5, head="first")) is None
    assert find_dense(Task(Functions(), (x, y), classes=5, head="second")) is not None
    assert find_dense(Task(Functions(), (x, y), loss=lambda out, y: F.cross_entropy(out, y, reduction="none"))) is None


def test_the_gelu_is_pytorchs():
    operations = pytest.importorskip("idiolect.kernels.dense_operations", reason="numba is not installed")
    x = torch.linspace(-12, 12, 4001).requires_grad_()
    (slope,) = torch.autograd.grad(F.gelu(x).sum(), x)
    out, flow = torch.zeros(2, 4001)
    operations.gelu(x.detach().numpy(), out.numpy())
    operations.gelu_backward(torch.ones(4001).numpy(), x.detach().numpy(), flow.numpy(), True)
    torch.testing.assert_close(out, F.gelu(x).detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(flow, slope, rtol=1e-5, atol=2e-6)
