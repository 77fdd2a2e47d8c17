"""A client's personal model, or the shared one, as files that other programs read, with a card that says what it is."""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..contract import predicts_its_own_way
from ..core.errors import InputError, MissingExtraError, ModelError, RunFolderError
from ..core.files import explain, whole_folder
from ..core.names import file_name
from ..core.options import did_you_mean
from ..core.registry import describe
from ..core.tables import compact, escape_markdown
from ..core.tree import Slots
from ..data.absent import DescribedFederation
from ..data.naming import list_names
from ..engines import Plan
from .folder import require_free
from .model_card import CARD as KEY
from .model_card import draw_rows, make_card, names_of, weights_of
from .model_files import write_model
from .predictor import make_module, module_of
from .result import Result
from .store import Row
from .summary import average, leave_out_undefined

ENDINGS = {"safetensors": "safetensors", "torch": "pt2", "torchscript": "pt", "onnx": "onnx"}
FORMATS = tuple(ENDINGS)
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
        """The arguments of the model for some inputs as the client has them; if it has fewer, they come again. They
        are nobody's where the data are elsewhere."""
        if isinstance(self.plan.data, DescribedFederation):
            return self.nobodys_inputs(count)
        part = self.plan.part(self.index, "train")
        return self._arguments(part.take(torch.arange(count) % part.size)[0])

    def nobodys_inputs(self, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the same shapes that hold nothing of anybody's."""
        return self._arguments(draw_rows(self.plan.data, count).to(self.plan.device))

    def _arguments(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = self.plan.task_of(self.index).net.call
        return ((x,), {}) if call is None else call.arguments(x)

    def module(self) -> nn.Module:
        """The model; one that is more than a network's weights takes a batch at a time."""
        ctx = self.plan.context(self.index, self.plan.rounds - 1, newcomer=False)
        return make_module(ctx, self.personal, one_batch=True)

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
    chosen = check_formats(formats)
    with _new_folder(folder) as part:
        names = _write_all(personal, part, chosen, {})
    return [folder / name for name in names]


def export_all(
    result: Result, folder: Path, formats: Iterable[str] = ("safetensors",), last: bool = False
) -> list[Path]:
    """Write every client's personal model into a new folder, in a folder of its own each, as `export` does."""
    chosen, networks, made = check_formats(formats), dict[int, dict[str, Any]](), []
    with _new_folder(folder) as part:
        for personal in personals_of(result, range(len(result.clients())), last):
            made.append(folder / f"{personal.index:04d}-{file_name(personal.client)}")
            (part / made[-1].name).mkdir()
            _write_all(personal, part / made[-1].name, chosen, networks)
    return made


def check_formats(formats: Iterable[str]) -> list[str]:
    """The formats, or an error where one is not known or needs a package that is not there."""
    chosen = list(formats)
    for name in chosen:
        if name not in FORMATS:
            raise InputError(f"there is no format {name!r}.{did_you_mean(name, FORMATS)} Choose {', '.join(FORMATS)}.")
    if "onnx" in chosen:
        require_onnx()
    return chosen


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder that is there whole or not at all."""
    require_free(folder, "exists and is not empty", "choose another folder for the model with --out")
    try:
        with whole_folder(folder) as part:
            yield part
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{folder} cannot be written: {explain(error)}; choose another with --out") from error


def _write_all(
    personal: Personal, folder: Path, formats: Sequence[str], networks: dict[int, dict[str, Any]]
) -> list[str]:
    """Write the files of a model, and return their names."""
    writers = {"torch": _torch_export, "torchscript": _torchscript, "onnx": _onnx}
    names = []
    for kind in formats:
        names.append(f"model.{ENDINGS[kind]}")
        if kind == "safetensors":
            write_weights(personal, folder / names[-1], networks)
        else:
            writers[kind](personal, folder / names[-1])
    texts: dict[str, str] = {}
    if known := names_of(personal.plan.data, personal.index if personal.client else None):
        texts[NAMES] = json.dumps(known, indent=1, ensure_ascii=False)
    if (prepared := personal.plan.data.prepared) is not None:
        texts[PREPARATION] = json.dumps(prepared.as_dict(personal.client), indent=1, ensure_ascii=False)
    texts[CARD] = personal.card()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*names, *texts]


def write_weights(personal: Personal, path: Path, networks: dict[int, dict[str, Any]] | None = None) -> None:
    """Write all values by name, the network's own or slot.name where there is more than one network, with the card by
    which `load_model` opens them; `networks` are descriptions that are known already, by number."""
    module = personal.module()
    card = make_card(personal, module, {} if networks is None else networks)
    about = {name: str(value) for name, value in personal.facts.items()}
    write_model(path, weights_of(module), {**about, KEY: json.dumps(card, ensure_ascii=False)})


def _torch_export(personal: Personal, path: Path) -> None:
    module = personal.module()
    with torch.no_grad(), _without_warnings():
        try:
            torch.export.save(_find_program(personal, module), path)
            written = torch.export.load(path).module()
        except Exception as error:  # the exporter raises its own kinds for what it cannot express
            raise _not_written("torch.export", type(error).__name__) from error
        _require_same(personal, module, written, "torch.export")


def _find_program(personal: Personal, module: nn.Module) -> torch.export.ExportedProgram:
    """The operations of a model, for batches of any size, found on inputs that are nobody's."""
    args, named = personal.nobodys_inputs(2)
    shapes = cast(Any, torch.export.ShapesCollection)()
    for leaf in tree_leaves((args, named)):
        shapes[leaf] = {0: torch.export.Dim.AUTO}
    return torch.export.export(module, args, named, dynamic_shapes=shapes)


def _torchscript(personal: Personal, path: Path) -> None:
    module, trace, (few, few_named) = personal.module(), cast(Any, torch.jit.trace), personal.inputs(2)
    with torch.no_grad(), _without_warnings():
        given = {"example_kwarg_inputs": few_named} if few_named else {"example_inputs": few}
        traced = trace(module, check_trace=False, **given)
        _require_same(personal, module, traced, "TorchScript")
        torch.jit.save(traced, str(path))


def _onnx(personal: Personal, path: Path) -> None:
    module = personal.module()
    if personal.plan.data.layout is not None:
        raise ModelError("a model with several inputs cannot be written as ONNX; choose torch or safetensors")
    with torch.no_grad(), _without_warnings():
        try:
            torch.onnx.export(
                _find_program(personal, module),
                f=str(path),
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=["x"],
                output_names=["outputs"],
            )
            written = _read_onnx(path)
        except Exception as error:  # the exporter raises its own kinds for what it cannot express
            raise _not_written("ONNX", type(error).__name__) from error
        _require_same(personal, module, written, "ONNX")


def _read_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """What an ONNX file computes, by the reference implementation of the package that writes it."""
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(str(path))
    return lambda x: torch.from_numpy(evaluator.run(None, {"x": x.cpu().numpy()})[0]).to(x.device)


def _require_same(personal: Personal, module: nn.Module, written: Callable[..., Tensor], form: str) -> None:
    """Raise an error unless what was written predicts as the model does, on more inputs than it was written from."""
    args, named = personal.inputs(CHECKED)
    try:
        is_same = torch.allclose(written(*args, **named), module(*args, **named), rtol=1e-3, atol=1e-5)
    except (RuntimeError, AssertionError):  # it is for batches of one size only
        is_same = False
    if not is_same:
        raise _not_written(form, f"{personal.plan.method.name} decides anew for every batch what to compute")


def _not_written(form: str, why: str) -> ModelError:
    return ModelError(f"this model cannot be written as {form} ({why}); choose safetensors, which load_model opens")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Exporters warn of what is no concern of who asked for a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def require_onnx() -> None:
    """Raise `MissingExtraError` where the packages that write ONNX are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise MissingExtraError("writing ONNX needs two packages: pip install onnx onnxscript")


def personal_of(result: Result, client: int | str, last: bool = False) -> Personal:
    """A client's model out of a run: of the selected round, or of the last one."""
    return next(personals_of(result, [client], last))


def personals_of(result: Result, clients: Iterable[int | str], last: bool = False) -> Iterator[Personal]:
    """Several clients' models, one after another."""
    at, done, which = find_exported_round(result, last)
    rows = [row for row in result.store.rows() if row[0] == at and row[4] in ("val", "test")]
    for index in map(result.index, clients):
        facts = about(result.plan, result.config.hash, index, at, done, which)
        personal = result.personal_slots(index, round=-1 if last else None)
        yield Personal(result.plan, index, personal, facts, scores_at(rows, index, at))


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


def scores_at(rows: Sequence[Row], index: int, at: int) -> list[tuple[str, str, float, int]]:
    """A client's validation and test scores of a round, those of the model that is exported."""
    scores = [row for row in rows if row[:2] == (at, index) and row[4] in ("val", "test")]
    point = "adapted" if any(row[3] == "adapted" for row in scores) else "personal"
    newest = {(split, metric): (value, samples) for *_, kind, split, metric, value, samples in scores if kind == point}
    return [(split, metric, value, samples) for (split, metric), (value, samples) in newest.items()]
