"""Which plans can be stacked: what is known beforehand, and what a trial step shows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import nn

from ..task.network import is_inert
from .plan import Plan
from .slots import first_server
from .stacking import Stack, explain, group_clients, ignore_slow_operations

_NO_RULE = (nn.RNNBase, nn.RNNCellBase)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


def why_not_stackable(plan: Plan) -> str:
    """Why a plan's clients cannot be traced at once; an empty string if they can. What nothing says beforehand, a step
    of two clients shows."""
    return why_refused(plan) or try_two_clients(plan)


def why_refused(plan: Plan) -> str:
    """Why a plan's clients cannot be traced at once, as far as its method and its layers say so."""
    if plan.method.refuses.stacking:
        return f"{plan.method.name}: {plan.method.refuses.stacking}"
    for module in (module for net in plan.networks_used for module in net.module.modules()):
        if isinstance(module, _NO_RULE):
            return f"the model has a {type(module).__name__}, which PyTorch has no rule to trace for many clients"
        if isinstance(module, _RANDOM) and not is_inert(module):
            return f"the model has a {type(module).__name__}, whose random numbers would differ from the reference's"
    return ""


def try_two_clients(plan: Plan) -> str:
    """Take one step of each phase with two clients, on a copy of the networks: why that failed, if it did."""
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            ignore_slow_operations()
            trial = replace(plan, tasks=tuple(task.twin() for task in plan.tasks))
            ids = trial.first_participants
            message = trial.method.download(trial.server(0), first_server(trial.server(0)), ids)
            groups = group_clients(trial, 0, dict.fromkeys(ids), message)
            pair = next((members[:2] for members in groups if len(members) > 1), None)
            if pair is not None:
                Stack(trial, pair, message).try_out()
    except Exception as error:
        return explain(error)
    return ""
