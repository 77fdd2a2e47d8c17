"""What every method must satisfy, one function per property."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..contract import Method, has_one_model, methods, predicts_its_own_way
from ..core import codec
from ..core.errors import ConformanceError, ModelError
from ..core.registry import describe
from ..core.tree import Slots
from ..engines import Loop
from ..engines.client_evaluation import adapt_model, predict
from ..engines.phases import batches, fresh_optimizer
from ..engines.slots import first_client, first_server, gather, keep_and_send, sent_names
from ..runs.round_loop import RoundLoop
from ..runs.store import Store
from ..task.optimizers import SGD
from .differences import require, require_equal_leaves
from .disturbances import Poisoned
from .shared_runs import (
    BRIEF,
    USUAL,
    change_held_out_labels,
    ends_as_undisturbed,
    losses_of,
    make_plan,
    plan_of_absent_clients,
    play_absent_once,
    play_once,
    play_scored_once,
    tasks,
)
from .tiny import ROUNDS, Played, personal_models, play, require_equal

NEARLY = 1e-6
"""How far apart, per round, what an identity calls `nearly` another method may be."""


def check_round_trip(method: Method) -> None:
    """The expression that describes a method builds it again."""
    text = describe(method)
    require(methods.build(text) == method, f"{text} builds {methods.build(text)}, not {method}")


def check_repeatable(method: Method) -> None:
    """The same plan gives the same bits twice.

    One run is evaluated after every round and the other after the last one only, which must change nothing else."""
    if not ends_as_undisturbed(method):
        require_equal(play_once(method, **USUAL), play_scored_once(make_plan(method, **USUAL)), "two runs of one plan")


def check_messages(method: Method) -> None:
    """Only declared slots leave a client; `download` changes nothing and tells everybody the same twice."""
    plan = make_plan(method)
    for round in range(-method.needs.setup_rounds, 1):
        ctx, server = plan.server(round), first_server(plan.server(round))
        before = codec.encode(server)
        first, second = (method.download(ctx, server, plan.data.seen) for _ in range(2))
        require(codec.encode(server) == before, "download changed the server's state")
        for index in plan.data.seen:
            require(
                codec.encode(first.of(index)) == codec.encode(second.of(index)), "download differs when called twice"
            )
        for index, outcome in Loop(plan).train(round, dict.fromkeys(plan.data.seen), first):
            sent = set(outcome.upload.slots) if outcome.upload else set()
            require(
                sent <= set(sent_names(method)),
                f"client {index} sends {sorted(sent - set(sent_names(method)))}, which no slot declares",
            )
            if outcome.upload:
                for slot, mask in outcome.upload.masks.items():
                    require(
                        all(leaf.dtype == torch.bool for leaf in mask.values()), f"the mask of {slot} is not boolean"
                    )


def check_pure(method: Method) -> None:
    """Client functions change nothing they are given; steps keep slots, shapes and dtypes, rounds the state's names."""
    plan = make_plan(method)
    round = -method.needs.setup_rounds
    download = method.download(plan.server(round), first_server(plan.server(round)), plan.data.seen)
    ctx = plan.context(0, round)
    client, message = first_client(ctx), download.of(0)
    before = codec.encode(client), codec.encode(message)
    work = method.prepare(ctx, gather(ctx, client, message))
    zero = torch.zeros(())
    work["log"] = {"loss": zero, "samples": zero}
    require(tuple(method.phases(ctx)) == tuple(method.phases(ctx)), "two calls of `phases` differ; is a step a lambda?")
    for number, phase in enumerate(method.phases(ctx)):
        during = replace(ctx, phase=phase)
        work = work if phase.before is None else phase.before(during, work)
        work = {**fresh_optimizer(during, work), **work}
        for step_ctx, batch in batches(plan, during, number):
            before_step, shape = codec.encode(work), _shape(work)
            after = phase.step(step_ctx, work, batch)
            require(codec.encode(work) == before_step, f"step changed its working slots in phase {phase.name}")
            require(
                _shape(after) == shape,
                f"step changed slots, shapes or dtypes in phase {phase.name}: {_shape(after) ^ shape}",
            )
            work = after
    kept, _ = keep_and_send(ctx, client, method.finish(ctx, work))
    gained = sorted(_names(kept) ^ _names(client))
    require(
        not gained, f"after `finish` the client's state has other slots or leaves than at first: {', '.join(gained)}"
    )
    require(
        (codec.encode(client), codec.encode(message)) == before,
        "the client's slots or its download were changed in place",
    )


def _names(slots: Slots) -> set[str]:
    return {f"{slot} {name}".strip() for slot, leaves in slots.items() for name in (*leaves, "")}


def _shape(slots: Slots) -> frozenset[Any]:
    return frozenset((s, n, tuple(leaf.shape), leaf.dtype) for s, leaves in slots.items() for n, leaf in leaves.items())


def check_absent_clients(method: Method) -> None:
    """Clients that are rarely or never sampled have finite scores all the same: as they are, after adaptation, after
    local training and with the shared model, those that never train as well."""
    plan, played = plan_of_absent_clients(method), play_absent_once(method)
    _require_scores(played, plan.data.seen, "seen")
    _require_scores(played, plan.data.unseen, "unseen")


def check_unseen_clients(method: Method) -> None:
    """Clients that never trained in the federation are served."""
    played, plan = play_once(method, **USUAL), make_plan(method, **USUAL)
    _require_scores(played, plan.data.seen, "seen")
    _require_scores(played, plan.data.unseen, "unseen")


def check_one_model(method: Method) -> None:
    """Where `about.kind` says that all clients predict with one model, their personal models are equal to the bit."""
    if not has_one_model(method):
        return
    require(not predicts_its_own_way(method), "about.kind is 'global', one model for all, but it predicts its own way")
    played = play_once(method, **USUAL)
    models = personal_models(make_plan(method, **USUAL), played)
    first = next(iter(models.values()))
    for index, model in models.items():
        what = f"about.kind is 'global', but the model of client {index} differs from another client's"
        for slot in ("params", "buffers"):
            require_equal_leaves(first[slot], model[slot], what)


def _require_scores(played: Played, ids: Iterable[int], cohort: str) -> None:
    scored = {row[1] for row in played.rows if row[2] == cohort and row[4] == "test" and row[6] == row[6]}
    require(scored >= set(ids), f"{cohort} clients without a finite score: {sorted(set(ids) - scored)}")


def check_networks(method: Method) -> None:
    """Clients with two different networks are served, or it is said before anything runs why they need one."""
    plan = make_plan(method, **BRIEF)
    several: dict[str, Any] = {
        "tasks": (plan.tasks[0], tasks(False, 3)),
        "networks": tuple(i % 2 for i in range(len(plan.data.clients))),
    }
    if not method.refuses.other_networks:
        _require_scores(play_scored_once(replace(plan, **several)), plan.data.seen, "seen")
        return
    try:
        replace(plan, **several)
    except ModelError as error:
        require(method.refuses.other_networks in str(error), f"two networks are refused without the reason: {error}")
        return
    raise ConformanceError(f"two networks are not refused, though {method.refuses.other_networks}")


def check_batchnorm(method: Method) -> None:
    """A model with batch normalisation trains under each policy for its statistics, and batches of one are dropped."""
    for policy in ("average", "local", "recompute"):
        played = play_scored_once(make_plan(method, norm=True, norm_stats=policy, **BRIEF))
        _require_scores(played, range(4), "seen")
        for name, leaf in played.leaves():
            require(
                not leaf.is_floating_point() or bool(torch.isfinite(leaf).all()),
                f"norm_stats={policy}: {name} is not finite",
            )


def check_after_local(method: Method) -> None:
    """It can be scored right after local training."""
    played = play(make_plan(method, rounds=1, after_local=True))
    scored = {row[1] for row in played.rows if row[3] == "after_local"}
    trained = {index for index, state in played.clients.items() if state is not None}
    require(scored == trained, f"clients {sorted(trained)} trained, and {sorted(scored)} have scores right after it")


def check_momentum(method: Method) -> None:
    """It runs under an optimiser with state, which clients may keep from round to round."""
    for state in ("reset", "keep"):
        plan = make_plan(method, optimizer=SGD(momentum=0.9, clip=1.0), optimizer_state=state, **BRIEF)
        _require_scores(play_scored_once(plan), range(5), "seen")


def check_resume(method: Method) -> None:
    """A run that is stopped after a round and resumed equals an uninterrupted one to the bit."""
    whole = play_once(method, **USUAL)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.sqlite"
        store, plan = Store(path), make_plan(method, **USUAL)
        rounds = iter(range(-method.needs.setup_rounds, 2))
        RoundLoop(plan, Loop(plan), store).run(stop=lambda: next(rounds, None) == 1)
        store.close()
        resumed = play(plan, store=Store(path))
    require_equal(whole, resumed, "a resumed run")
    require(whole.rows == resumed.rows, "the metrics of a resumed run differ")


def check_no_test_data(method: Method) -> None:
    """Training never sees validation or test data."""
    if not ends_as_undisturbed(method):
        other = play_scored_once(change_held_out_labels(make_plan(method, **USUAL)))
        require_equal(play_once(method, **USUAL), other, "other validation and test labels")


def check_poison(method: Method) -> None:
    """A client whose upload is not finite is left out; the others go on, and its own state stays as it was."""
    played = play_scored_once(make_plan(method, **BRIEF), Poisoned)
    for name, leaf in played.leaves():
        require(not leaf.is_floating_point() or bool(torch.isfinite(leaf).all()), f"one bad upload spoils {name}")


def check_identities(method: Method) -> None:
    """The neutral cases that the method declares predict what they must: after every round, at every point."""
    for neutral, plain in type(method).identities.items():
        what = f"{neutral} should equal {plain}, but"
        tolerance = NEARLY * ROUNDS if plain.startswith("nearly ") else 0.0
        a, b = methods.build(neutral, type(method)), plain_of(plain)
        require_equal_leaves(_predictions(a), _predictions(b), f"{what} predictions differ", tolerance)
        require_equal_leaves(_every_loss(a), _every_loss(b), f"{what} losses differ", tolerance)


def plain_of(declared: str) -> Method:
    """The method that an identity says a neutral case equals."""
    return methods.build(declared.removeprefix("nearly "))


def _predictions(method: Method) -> dict[str, Tensor]:
    """The log-probabilities that every client predicts after the last round for all of its inputs, before and after it
    adapts its model."""
    plan, played = make_plan(method, after_local=True), play_once(method, after_local=True)
    outputs: dict[str, Tensor] = {}
    for index, model in personal_models(plan, played).items():
        ctx = plan.context(index, plan.rounds - 1, newcomer=played.clients[index] is None)
        x = plan.data.clients[index].x
        assert isinstance(x, Tensor)
        adapted = adapt_model(plan, ctx, model, unseen=False) or model
        outputs |= {
            f"client {index} {point}": predict(plan, ctx, slots, x).log_softmax(1)
            for point, slots in (("personal", model), ("adapted", adapted))
        }
    return outputs


def _every_loss(method: Method) -> dict[str, Tensor]:
    """The losses of all clients' models in all rounds, before and right after training."""
    losses = losses_of(play_once(method, after_local=True))
    return {name: loss for name, loss in losses.items() if name.endswith((", personal", ", after_local"))}
