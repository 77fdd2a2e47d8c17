"""A client's personal model as files that other programs read, with a card that says what it is."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..contract import predicts_its_own_way
from ..core.errors import InputError, MissingExtraError, ModelError, RunFolderError
from ..core.files import write_whole
from ..core.options import did_you_mean
from ..core.registry import describe
from ..core.tree import Slots
from ..engines import Plan
from .folder import require_free
from .result import Predictor, Result, module_of
from .store import Row

FORMATS = ("safetensors", "torchscript", "onnx")
CHECKED = 9
"""Inputs on which a traced model must predict as the model does."""


@dataclass(frozen=True)
class Personal:
    """A client's model and what there is to say about it; `scores` are (split, metric, value, samples)."""

    plan: Plan
    index: int
    view: Slots
    facts: Mapping[str, Any]
    scores: Sequence[tuple[str, str, float, int]]

    def inputs(self, count: int) -> Tensor:
        """Some inputs as the client has them; if it has fewer, they come again."""
        part = self.plan.part(self.index, "train")
        return part.take(torch.arange(count) % part.size)[0]

    def module(self) -> nn.Module:
        """The model; one that is more than a network's weights takes a batch at a time."""
        ctx = self.plan.context(self.index, self.plan.rounds - 1, newcomer=False)
        if predicts_its_own_way(self.plan.method):
            return OneBatch(self.plan, ctx, self.view).eval()
        return module_of(ctx.task, self.view)

    def weights(self) -> dict[str, Tensor]:
        """All numbers by name: a network's own names, or slot/name where there is more than one network."""
        if predicts_its_own_way(self.plan.method):
            named = {f"{slot}/{name}": leaf for slot, leaves in self.view.items() for name, leaf in leaves.items()}
        else:
            named = self.module().state_dict()
        return {name: leaf.detach().clone().contiguous() for name, leaf in named.items()}

    def card(self) -> str:
        """What the model is, in Markdown."""
        lines = [f"# Personal model of client {self.facts['client']}", ""]
        lines += [f"- {name.replace('_', ' ')}: {value}" for name, value in self.facts.items()]
        if (size := self.plan.method.needs.eval_batch) is not None and predicts_its_own_way(self.plan.method):
            lines += [f"- batches: what it predicts depends on the batch; give it at most {size} inputs at a time"]
        lines += [
            "",
            "Scores on this client's own data:",
            "",
            "| split | metric | value | samples |",
            "|---|---|---|---|",
        ]
        lines += [f"| {split} | {metric} | {value:.4f} | {count} |" for split, metric, value, count in self.scores]
        return "\n".join(lines) + "\n"


class OneBatch(Predictor):
    """A personal model that is more than one network's weights, for one batch at a time."""

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of one batch."""
        return self._plan.method.predict(self._ctx, self.view(), x)


def export(personal: Personal, folder: Path, formats: Iterable[str] = ("safetensors",)) -> list[Path]:
    """Write a personal model in some formats, and its card, into a new folder."""
    chosen = list(formats)
    for each in chosen:
        if each not in FORMATS:
            raise InputError(f"there is no format {each!r}.{did_you_mean(each, FORMATS)} Choose {', '.join(FORMATS)}.")
    require_free(folder, "exists and is not empty", "choose another folder for the model with --out")
    if "onnx" in chosen:
        require_onnx()
    folder.mkdir(parents=True, exist_ok=True)
    writers = {"safetensors": _safetensors, "torchscript": _torchscript, "onnx": _onnx}
    endings = {"safetensors": "safetensors", "torchscript": "pt", "onnx": "onnx"}
    paths = [folder / f"model.{endings[each]}" for each in chosen]
    for each, path in zip(chosen, paths, strict=True):
        write_whole(path, lambda part, each=each: writers[each](personal, part))  # type: ignore[misc]
    write_whole(folder / "card.md", lambda part: part.write_text(personal.card()))
    return [*paths, folder / "card.md"]


def _safetensors(personal: Personal, path: Path) -> None:
    save_file(personal.weights(), path, metadata={name: str(value) for name, value in personal.facts.items()})


def _torchscript(personal: Personal, path: Path) -> None:
    module, trace, inputs = personal.module(), cast(Any, torch.jit.trace), personal.inputs(CHECKED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch would rather have another format
        traced = trace(module, personal.inputs(2), check_trace=False)
        if not torch.allclose(traced(inputs), module(inputs), rtol=1e-3, atol=1e-5):
            raise ModelError(
                f"{personal.plan.method.name} decides anew for every batch what to compute, which TorchScript cannot "
                f"express; choose safetensors"
            )
        torch.jit.save(traced, str(path))


def _onnx(personal: Personal, path: Path) -> None:
    batch = torch.export.Dim("batch")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                personal.module(),
                (personal.inputs(2),),
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
    index, known = result.index(client), result.store.facts
    done = known.rounds_done - 1
    if done < 0:
        raise RunFolderError("the run has no complete round yet, so there is no model to export; resume it first")
    at = done if last or known.selected is None else known.selected
    facts = about(result.plan, result.config.hash, index, at, done, "last" if last else "selected by validation")
    scores = scores_at(result.store.rows(), index, at)
    return Personal(result.plan, index, result.view(index, round=-1 if last else None), facts, scores)


def about(plan: Plan, config_hash: str, index: int, at: int, done: int, which: str) -> dict[str, Any]:
    """The facts of a card."""
    from .. import __version__

    return {
        "client": plan.data.clients[index].name,
        "method": describe(plan.method),
        "round": f"{at + 1} ({which})",
        "rounds": f"{done + 1} of {plan.rounds}",
        "training_samples": int(plan.facts(index)[0]),
        "config_hash": config_hash,
        "idiolect": __version__,
    }


def scores_at(rows: Sequence[Row], index: int, at: int) -> list[tuple[str, str, float, int]]:
    """A client's validation and test scores of a round, those of the model that is exported."""
    here = [row for row in rows if row[:2] == (at, index) and row[4] in ("val", "test")]
    point = "adapted" if any(row[3] == "adapted" for row in here) else "view"
    newest = {(split, metric): (value, samples) for *_, kind, split, metric, value, samples in here if kind == point}
    return [(split, metric, value, samples) for (split, metric), (value, samples) in newest.items()]
