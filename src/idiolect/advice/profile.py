"""The numbers about one federation and its run: measured on training data and, for conflicts, on the updates of a few
rounds of FedAvg."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..analysis import conflict_scores, sketch
from ..comparison.conditions import count_fedavg_gradients
from ..data.federation import GIVEN
from ..engines import Plan, engines
from ..runs.trial import Trial
from . import measure

CLIENTS, SAMPLES = 100, 64
"""At most so many clients, evenly chosen, and of each so many samples, are looked at where inputs are compared."""
PAIRED = 32
"""At most so many clients' updates are compared."""
OPPOSED = -0.1
_FOLDED = 4096


def measure_federation(plan: Plan) -> dict[str, float]:
    """The numbers about data and settings, by the names of the scales in `rules`."""
    data = plan.data
    seen = [data.clients[index] for index in data.seen]
    sizes = torch.tensor([float(len(client)) for client in seen])
    task = plan.tasks[0]
    hidden = [unit for unit in task.units if unit is not task.head_unit and not unit.is_norm]
    steps = count_fedavg_gradients(plan) / len(seen)
    return {
        **measure_differences(plan),
        "quantity skew": measure.gini(sizes.tolist()),
        "few samples": float(sizes.median()),
        "few steps": steps,
        "many clients": len(seen),
        "natural clients": float(data.partition == GIVEN or data.partition.startswith("group")),
        "absence": 1 - plan.participation,
        "unseen clients": len(data.unseen) / len(data),
        "hidden layers": len(hidden),
        "normalisation": sum(unit.is_norm for unit in task.units),
    }


def measure_differences(plan: Plan) -> dict[str, float]:
    """How the clients' labels, inputs and concepts differ, by training data alone."""
    data = plan.data
    clients = [data.clients[index] for index in data.seen]
    targets = [data.named_labels(client, client.train) for client in clients]
    labels = measure.as_classes(targets) if data.classes is None else targets
    chosen = pick_evenly(range(len(clients)), CLIENTS)
    parts = [clients[at].take(clients[at].train.long()[:SAMPLES]) for at in chosen]
    features = measure.random_features([x for x, _ in parts], data.vocabulary if data.tokens else 0, data.seed)
    kinds = [_one_per_sample(labels[at][:SAMPLES]) for at in chosen]
    return {
        "label skew": measure.label_skew(labels, data.seed),
        "feature shift": measure.feature_shift(features, kinds),
        # Whoever has classes of its own has not other names for the classes of others.
        "concept shift": 0.0 if data.own_labels else measure.concept_shift(features, kinds),
    }


def _one_per_sample(labels: Tensor) -> Tensor:
    """One label per sample: of a map or a sequence the most frequent."""
    return labels if labels.ndim == 1 else labels.flatten(1).mode(1).values


def pick_evenly(items: Sequence[int], most: int) -> list[int]:
    """At most so many of the items, evenly chosen.

    >>> pick_evenly(range(10), 4)
    [0, 2, 5, 7]
    """
    return [items[at * len(items) // most] for at in range(most)] if len(items) > most else list(items)


def find_conflicts(plan: Plan, engine: str, rounds: int) -> dict[str, float]:
    """For each unit the share of pairs of clients whose updates oppose each other after a few rounds of FedAvg."""
    trial = Trial(plan, engine)
    trial.advance(min(rounds, plan.rounds))
    server, at = trial.store.server(), trial.rounds
    ids = pick_evenly(plan.data.seen, PAIRED)
    trainer = engines.build(engine).make(plan)
    try:
        message = plan.method.download(plan.server(at), server, ids)
        with torch.random.fork_rng(devices=[]):
            outcomes = dict(trainer.train(at, trial.store.clients(ids), message))
    finally:
        trainer.close()
    sent = [outcome.upload.slots["params"] for _, outcome in sorted(outcomes.items()) if outcome.upload is not None]
    usable = [leaves for leaves in sent if all(bool(leaf.isfinite().all()) for leaf in leaves.values())]
    if len(usable) < 2:
        return {}
    updates = {
        unit.name: [
            sketch(torch.cat([(leaves[n] - server["params"][n]).flatten() for n in unit.params]), _FOLDED)
            for leaves in usable
        ]
        for unit in plan.tasks[0].units
        if unit.params
    }
    pairs = len(usable) * (len(usable) - 1) / 2
    return {unit: count / pairs for unit, count in conflict_scores(updates, OPPOSED).items()}


def split_conflicts(shares: dict[str, float], head: str) -> dict[str, float]:
    """The conflicts in the head, and on average in the layers before it."""
    body = [share for unit, share in shares.items() if unit != head]
    return {
        "head conflict": shares.get(head, math.nan),
        "body conflict": sum(body) / len(body) if body else math.nan,
    }
