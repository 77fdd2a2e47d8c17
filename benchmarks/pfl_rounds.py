"""The workload on pfl, in pfl's own environment: started by `peers.py` with torchrun, two processes of one thread each.
It does a round for each line on its standard input and answers with the seconds."""

import itertools
import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module as get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

TRAIN, TEST, LR = 320, 64, 0.01


def network(model: str) -> nn.Module:
    """The benchmark's networks, layer by layer as in `idiolect.models`."""
    if model.startswith("mlp"):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    channels, sizes = (3, (1600, 120, 84, 10)) if model == "lenet5w" else (1, (1024, 512, 10))
    layers = [nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), *dense[:-1])


class Learner(nn.Module):
    """A network with the two functions that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        self.eval()
        outputs = self.net(x)
        loss = F.cross_entropy(outputs, y, reduction="sum").item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted((outputs.argmax(1) == y).sum().item(), len(y))}


class OnDemand(TrainingProcessCallback):
    """Ends every round by saying how long it took and waiting for the next order."""

    def __init__(self) -> None:
        self.rank = get_ops().distributed.global_rank
        self.wait()

    def wait(self) -> None:
        if self.rank == 0:
            print("ready", flush=True)
            sys.stdin.readline()
        torch.distributed.barrier()
        self.started = time.perf_counter()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        torch.distributed.barrier()
        if self.rank == 0:
            print(json.dumps(time.perf_counter() - self.started), flush=True)
        self.wait()
        return False, Metrics()


def main() -> None:
    """Build the work and do rounds until the pipe is closed."""
    model, shape, batch, clients = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(clients, TRAIN + TEST, *shape, generator=draw)
    y = torch.randint(0, 10, (clients, TRAIN + TEST), generator=draw)
    learner = Learner(network(model))
    wrapped = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))

    def user(index: int) -> Dataset:
        order = torch.randperm(TRAIN)
        return Dataset([x[index, :TRAIN][order], y[index, :TRAIN][order]], user_id=str(index))

    users = list(range(clients))
    train = FederatedDataset(user, get_user_sampler("minimize_reuse", users))
    held_out = Dataset([x[:, TRAIN:].flatten(0, 1), y[:, TRAIN:].flatten()])
    np.random.seed(0)
    FederatedAveraging().run(
        NNAlgorithmParams(10**6, evaluation_frequency=10**6, train_cohort_size=clients, val_cohort_size=0),
        SimulatedBackend(train, train),
        wrapped,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=batch),
        NNEvalHyperParams(local_batch_size=1024),
        [CentralEvaluationCallback(held_out, NNEvalHyperParams(local_batch_size=1024)), OnDemand()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
