"""What a constant scores: every client's own most frequent class or mean, and that of all clients together. Whoever
does not beat it has learned nothing that counting could not tell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import IdiolectError
from ..data import Federation
from ..data.pool_clients import training_targets
from ..engines import Plan
from ..task.losses import bce, cox
from ..task.task import Task
from .summary import describe_round

TITLES = {"own": "a constant per client", "shared": "one constant for all"}
"""The kinds of constants, and how tables call them."""


def score_constants(plan: Plan, metric: str) -> dict[str, Any]:
    """The spread over evaluated clients of the test score of constants: what each has most, or on average, in its
    training data (`own`), and what all of them have (`shared`), unless each has its own labels. Nothing where targets
    are classes of positions or pixels, where there are no test data, or where a metric of the user's cannot score a
    constant."""
    data, task = plan.data, plan.tasks[0]
    tested = [index for index in plan.evaluated if len(data.clients[index].test)]
    if not tested or (data.classes is not None and data.target_shape):
        return {}
    rule = task.metrics[metric]
    kinds = ("own",) if data.own_labels else ("own", "shared")
    scores: dict[str, dict[int, tuple[float, int]]] = {kind: {} for kind in kinds}
    try:
        shared = {kind: _find_constant(task, training_targets(data.clients, data.seen)) for kind in kinds[1:]}
        for index in tested:
            y = _targets(data, index, "test")
            constants = {"own": _find_constant(plan.task_of(index), _targets(data, index, "train")), **shared}
            for kind, constant in constants.items():
                scores[kind][index] = (rule(constant.expand(len(y), *constant.shape), y), len(y))
    except (IdiolectError, ArithmeticError, ValueError, TypeError, RuntimeError, IndexError):
        return {}
    return {kind: describe_round(scores[kind], len(tested), rule.higher_is_better) for kind in kinds}


def _targets(data: Federation, index: int, split: str) -> Tensor:
    client = data.clients[index]
    return client.y.index_select(0, getattr(client, split).long())


def _find_constant(task: Task, known: Tensor) -> Tensor:
    """The outputs for one sample of a model that knows some targets and nothing else, in the shape of the network's."""
    shape = task.example_output.outputs.shape[1:]
    if task.loss_fn is cox:
        return torch.zeros(shape)
    if task.classes is None:
        mean = known.double().mean(0)
        constant = torch.logit(mean, eps=1e-6) if task.loss_fn is bce else mean
        return constant.float().reshape(shape)
    if shape.numel() == 1:  # one logit for two classes
        return torch.logit((known > 0).double().mean(), eps=1e-6).float().expand(shape)
    counts = torch.bincount(known, minlength=shape.numel()).double()
    return ((counts + 1) / (counts.sum() + len(counts))).log().float().expand(shape)
