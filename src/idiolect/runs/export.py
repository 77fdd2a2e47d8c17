"""A client's personal model, or the shared one, as files that other programs read, with a card that says what it is."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..contract import predicts_its_own_way
from ..core.errors import InputError, MissingExtraError, ModelError, RunFolderError
from ..core.files import explain, whole_folder
from ..core.names import file_name
from ..core.options import did_you_mean
from ..core.registry import describe
from ..core.tables import compact, escape_markdown
from ..core.tree import Slots
from ..data import Federation
from ..data.naming import list_names
from ..engines import Plan
from .folder import require_free
from .model_files import write_model
from .predictor import make_module, module_of
from .result import Result
from .store import Row
from .summary import average, leave_out_undefined

FORMATS = ("safetensors", "torchscript", "onnx")
CARD = "card.md"
NAMES = "names.json"
"""What the data call classes, features and words, where they have names."""
PREPARATION = "preparation.json"
"""How the columns of a table become the model's inputs: what fills gaps, what is subtracted and divided by."""
CHECKED = 9
"""Inputs on which a traced model must predict as the model does."""


@dataclass(frozen=True)
class Personal:
    """A client's model and what there is to say about it; `scores` are (split, metric, value, samples)."""

    plan: Plan
    index: int
    personal: Slots
    facts: Mapping[str, Any]
    scores: Sequence[tuple[str, str, float, int]]

    scored_on: ClassVar[str] = "this client's own data"

    @property
    def title(self) -> str:
        """What the model is, in a line of Markdown."""
        return f"Personal model of client {escape_markdown(str(self.facts['client']))}"

    @property
    def folder_name(self) -> str:
        """A name for a folder with the model."""
        return f"model-{file_name(self.plan.data.clients[self.index].name)}"

    @property
    def client(self) -> str:
        """By which name its inputs were prepared."""
        return self.plan.data.clients[self.index].name

    @property
    def largest_batch(self) -> int | None:
        """The most inputs that it may be given at a time, where what it predicts depends on the batch."""
        return self.plan.method.needs.eval_batch if predicts_its_own_way(self.plan.method) else None

    def inputs(self, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the model for some inputs as the client has them; if it has fewer, they come again."""
        part, call = self.plan.part(self.index, "train"), self.plan.task_of(self.index).net.call
        x = part.take(torch.arange(count) % part.size)[0]
        return ((x,), {}) if call is None else call.arguments(x)

    def module(self) -> nn.Module:
        """The model; one that is more than a network's weights takes a batch at a time."""
        ctx = self.plan.context(self.index, self.plan.rounds - 1, newcomer=False)
        return make_module(ctx, self.personal, one_batch=True)

    def weights(self) -> dict[str, Tensor]:
        """All numbers by name: a network's own names, or slot.name where there is more than one network."""
        return {name: leaf.detach().clone().contiguous() for name, leaf in self.module().state_dict().items()}

    def card(self) -> str:
        """What the model is, in Markdown."""
        lines = [f"# {self.title}", ""]
        lines += [f"- {name.replace('_', ' ')}: {escape_markdown(str(value))}" for name, value in self.facts.items()]
        if (size := self.largest_batch) is not None:
            lines += [f"- batches: what it predicts depends on the batch; give it at most {size} inputs at a time"]
        if not self.scores:
            return "\n".join(lines) + "\n"
        lines += ["", f"Scores on {self.scored_on}:", "", "| split | metric | value | samples |", "|---|---|---|---|"]
        lines += [
            f"| {split} | {escape_markdown(metric)} | {compact(value, 4)} | {count} |"
            for split, metric, value, count in self.scores
        ]
        return "\n".join(lines) + "\n"


class Shared(Personal):
    """The shared model itself; `index` is a client whose inputs it is traced with."""

    scored_on = "the data of all clients that take part, weighted by samples"
    title = "Shared model"
    client = ""
    folder_name = "shared-model"
    largest_batch = None

    def module(self) -> nn.Module:
        """The network with the shared weights."""
        return module_of(self.plan.tasks[0], self.personal)


def export(personal: Personal, folder: Path, formats: Iterable[str] = ("safetensors",)) -> list[Path]:
    """Write a personal model in some formats, and its card, into a new folder."""
    chosen = list(formats)
    for name in chosen:
        if name not in FORMATS:
            raise InputError(f"there is no format {name!r}.{did_you_mean(name, FORMATS)} Choose {', '.join(FORMATS)}.")
    require_free(folder, "exists and is not empty", "choose another folder for the model with --out")
    if "onnx" in chosen:
        require_onnx()
    writers = {"safetensors": _safetensors, "torchscript": _torchscript, "onnx": _onnx}
    endings = {"safetensors": "safetensors", "torchscript": "pt", "onnx": "onnx"}
    names = [f"model.{endings[name]}" for name in chosen]
    try:
        with whole_folder(folder) as part:
            for kind, name in zip(chosen, names, strict=True):
                writers[kind](personal, part / name)
            (part / CARD).write_text(personal.card(), encoding="utf-8")
            if known := names_of(personal.plan.data, personal.index if personal.client else None):
                names.append(NAMES)
                (part / NAMES).write_text(json.dumps(known, indent=1, ensure_ascii=False), encoding="utf-8")
            if (prepared := personal.plan.data.prepared) is not None:
                names.append(PREPARATION)
                facts = prepared.as_dict(personal.client)
                (part / PREPARATION).write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{folder} cannot be written: {explain(error)}; choose another with --out") from error
    return [folder / name for name in (*names, CARD)]


def _safetensors(personal: Personal, path: Path) -> None:
    write_model(path, personal.weights(), {name: str(value) for name, value in personal.facts.items()})


def _torchscript(personal: Personal, path: Path) -> None:
    module, trace, (args, named) = personal.module(), cast(Any, torch.jit.trace), personal.inputs(CHECKED)
    few, few_named = personal.inputs(2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch would rather have another format
        given = {"example_kwarg_inputs": few_named} if few_named else {"example_inputs": few}
        traced = trace(module, check_trace=False, **given)
        if not torch.allclose(traced(*args, **named), module(*args, **named), rtol=1e-3, atol=1e-5):
            raise ModelError(
                f"{personal.plan.method.name} decides anew for every batch what to compute, which TorchScript cannot "
                f"express; choose safetensors"
            )
        torch.jit.save(traced, str(path))


def _onnx(personal: Personal, path: Path) -> None:
    args, _ = personal.inputs(2)
    if personal.plan.data.layout is not None:
        raise ModelError("a model with several inputs cannot be written as ONNX; choose torchscript or safetensors")
    batch = torch.export.Dim("batch")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                personal.module(),
                args,
                str(path),
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=["x"],
                output_names=["outputs"],
                dynamic_shapes=({0: batch},),
            )
        except Exception as error:  # the exporter raises its own kinds for what it cannot express
            raise ModelError(
                f"this model cannot be written as ONNX ({type(error).__name__}); choose torchscript or safetensors"
            ) from error


def require_onnx() -> None:
    """Raise `MissingExtraError` where the packages that write ONNX are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise MissingExtraError("writing ONNX needs two packages: pip install onnx onnxscript")


def personal_of(result: Result, client: int | str, last: bool = False) -> Personal:
    """A client's model out of a run: of the selected round, or of the last one."""
    index = result.index(client)
    at, done, which = find_exported_round(result, last)
    facts = about(result.plan, result.config.hash, index, at, done, which)
    scores = scores_at(result.store.rows(), index, at)
    return Personal(result.plan, index, result.personal_slots(index, round=-1 if last else None), facts, scores)


def shared_of(result: Result, last: bool = False) -> Shared:
    """The shared model itself out of a run: of the selected round, or of the last one."""
    plan = result.plan
    at, done, which = find_exported_round(result, last)
    model = result.global_slots(round=-1 if last else None)
    facts = about(plan, result.config.hash, None, at, done, which)
    rows = [row for row in result.store.rows(cohort="seen", point="global") if row[0] == at]
    scores = []
    for split, metric in dict.fromkeys((row[4], row[5]) for row in rows):
        known = {client: (value, samples) for _, client, *_, s, m, value, samples in rows if (s, m) == (split, metric)}
        samples = sum(samples for _, samples in leave_out_undefined(known).values())
        scores.append((split, metric, average(known), samples))
    return Shared(plan, plan.data.seen[0], model, facts, scores)


def find_exported_round(result: Result, last: bool) -> tuple[int, int, str]:
    """The round of the model, the last round, both counted from 0, and which one it is in words."""
    known = result.store.facts
    done = known.rounds_done - 1
    if done < 0:
        raise RunFolderError("the run has no complete round yet, so there is no model to export; resume it first")
    at = done if last or known.selected is None else known.selected
    return at, done, "last" if last else f"selected: {known.selection}"


def about(plan: Plan, config_hash: str, index: int | None, at: int, done: int, which: str) -> dict[str, Any]:
    """The facts of a card, of a client's model or of the shared one."""
    from .. import __version__

    members = plan.data.seen if index is None else (index,)
    names = names_of(plan.data, index)
    return {
        **({"clients": len(members)} if index is None else {"client": plan.data.clients[index].name}),
        "method": describe(plan.method),
        "round": f"{at + 1} ({which})",
        "rounds": f"{done + 1} of {plan.rounds}",
        **{kind: list_names(names[kind]) for kind in ("classes", "features", "targets") if kind in names},
        **({"inputs": str(plan.data.layout)} if plan.data.layout is not None else {}),
        **({"preparation": f"{plan.data.prepared}; numbers in {PREPARATION}"} if plan.data.prepared else {}),
        "training_samples": sum(int(plan.facts(i)[0]) for i in members),
        "config_hash": config_hash,
        "idiolect": __version__,
    }


def names_of(data: Federation, index: int | None) -> dict[str, list[str]]:
    """What the data call things; the classes are a client's own where it has its own."""
    own = data.clients[index].labels if index is not None else ()
    return data.names.as_dict() | ({"classes": list(own)} if own else {})


def scores_at(rows: Sequence[Row], index: int, at: int) -> list[tuple[str, str, float, int]]:
    """A client's validation and test scores of a round, those of the model that is exported."""
    scores = [row for row in rows if row[:2] == (at, index) and row[4] in ("val", "test")]
    point = "adapted" if any(row[3] == "adapted" for row in scores) else "personal"
    newest = {(split, metric): (value, samples) for *_, kind, split, metric, value, samples in scores if kind == point}
    return [(split, metric, value, samples) for (split, metric), (value, samples) in newest.items()]
