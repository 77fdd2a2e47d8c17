"""Checks of one line each for a method's own tests: which options, wrappers and tasks it refuses, which wrappers can
wrap it, and that its models can be used alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from ..contract import Task, methods
from ..core.errors import ComposeError, IdiolectError, ModelError, OptionError
from ..runs import run
from .differences import require
from .tiny import play, tiny_plan

WRAPPERS = ("fedlag({}, warmup=0)", "flayer({})", "finetune({})")
"""One expression of each kind of wrapper."""


def check_bad_options(method: str, *options: str) -> None:
    """Check that a method refuses each of these options by an error that names both.

    >>> check_bad_options("fedprox", "mu=-1", "mu=much")
    """
    for option in options:
        text = f"{method}({option})"
        _require_refusal(text, OptionError, f"{method}: {option.split('=')[0]}=", partial(methods.build, text))


def check_wrappers_refused(method: str, reason: str, wrappers: Sequence[str] = ("fedlag({})", "flayer({})")) -> None:
    """Check that wrappers which act on one federated model refuse a method, for a reason that they give.

    >>> check_wrappers_refused("local", "shares nothing")
    """
    for wrapper in wrappers:
        text = wrapper.format(method)
        _require_refusal(text, ComposeError, reason, partial(methods.build, text))


def check_regression_refused(method: str, reason: str) -> None:
    """Check that a method refuses a task without classes, for a reason that it gives.

    >>> check_regression_refused("fedpac", "task has none")
    """
    task = Task(nn.Linear(4, 1), (torch.zeros(2, 4), torch.zeros(2, 1)))
    _require_refusal(f"{method} on regression", ModelError, reason, lambda: methods.build(method).check(task))


def check_wrappers(method: str, wrappers: Sequence[str] = WRAPPERS) -> None:
    """Check that wrappers can wrap a method: a run of each ends with finite numbers."""
    for wrapper in wrappers:
        text = wrapper.format(method)
        for name, leaf in play(tiny_plan(text)).leaves():
            require(not leaf.is_floating_point() or bool(torch.isfinite(leaf).all()), f"{text}: {name} is not finite")


def check_export(method: str) -> None:
    """Check that a client's model, which a short run on the digits gives, predicts as a PyTorch module."""
    result = run(method, clients=6, rounds=1, seed=0, unseen=0.2, engine="loop")
    shape = tuple(result.model(0)(torch.zeros(2, 1, 8, 8)).shape)
    require(shape == (2, 10), f"a model of {method} gives outputs of shape {shape}, not (2, 10)")


def _require_refusal(what: str, kind: type[IdiolectError], words: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        require(words in str(error), f"{what} is refused, but not with {words!r}: {error}")
    else:
        require(False, f"{what} is not refused")
