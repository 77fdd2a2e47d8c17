"""What a run leaves behind: metrics, the summary, and every client's personal model as a ready module."""

from __future__ import annotations

import copy
import json
import platform
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..contract import Method, Wrapper, predicts_its_own_way
from ..core.errors import InputError
from ..core.files import write_whole
from ..core.options import did_you_mean, options_of
from ..core.registry import describe
from ..core.tree import Slots
from ..engines import Plan
from ..engines.client_evaluation import adapt_model
from ..engines.slots import first_client, gather
from ..task.task import Task
from .folder import METRICS, SUMMARY
from .settings import Config
from .store import Store
from .summary import headline, table

if TYPE_CHECKING:
    import polars as pl

SCHEMA_VERSION = 1


class Result:
    """A finished or interrupted run."""

    def __init__(self, plan: Plan, config: Config, store: Store, metric: str, point: str, folder: Path | None) -> None:
        self.plan, self.config, self.store, self.folder = plan, config, store, folder
        self.metric, self.point = metric, point

    @property
    def metrics(self) -> pl.DataFrame:
        """One row per round, client, point, split and metric."""
        return table(self.store.rows())

    @property
    def complete(self) -> bool:
        """Whether all rounds are done."""
        return self.store.facts.rounds_done >= self.plan.rounds

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The numbers of a table, as written to summary.json, when they are first asked for."""
        plan, facts, rows = self.plan, self.store.facts, self.store.rows()
        higher = plan.tasks[0].metrics[self.metric].higher_is_better
        selected = -1 if facts.selected is None else facts.selected

        def scores(cohort: str, point: str) -> dict[str, Any]:
            return headline(rows, cohort, point, self.metric, higher, selected)

        unseen = scores("unseen", "adapted") or scores("unseen", "view")
        local = scores("seen", "after_local")
        return {
            "schema": SCHEMA_VERSION,
            "method": self.config.method,
            "options": options_tree(plan.method),
            "data": plan.data.name,
            "data_hash": plan.data.fingerprint,
            "partition": {
                "name": plan.data.partition,
                "hash": plan.data.partition_hash,
                "clients": len(plan.data.clients),
            },
            "seed": self.config.seed,
            "rounds": plan.rounds,
            "rounds_done": facts.rounds_done,
            "engine": facts.engine or self.config.engine,
            "calibration": facts.calibration,
            "metric": self.metric,
            "direction": "higher" if higher else "lower",
            "point": self.point,
            "selection": "last round" if facts.selected_score is None else "sample-weighted validation",
            self.metric: scores("seen", self.point),
            **({} if self.point == "view" else {"before_adaptation": scores("seen", "view")}),
            **({"after_local": local} if local else {}),
            **({"unseen": unseen} if unseen else {}),
            "bytes_up": facts.bytes_up,
            "bytes_down": facts.bytes_down,
            "bytes_eval": facts.bytes_eval,
            "steps": facts.steps,
            "refused": facts.refused,
            "idle": facts.idle,
            "seconds": round(facts.seconds, 3),
            "server_mb": round(facts.server_mb, 3),
            "peak_memory_mb": round(facts.peak_memory_mb, 1),
            "config_hash": self.config.hash,
            "versions": {"idiolect": _version(), "torch": torch.__version__, "python": platform.python_version()},
        }

    def clients(self) -> list[str]:
        """The clients' names, in order."""
        return [client.name for client in self.plan.data.clients]

    def index(self, client: int | str) -> int:
        """A client's position, from its position or name."""
        if isinstance(client, int) and 0 <= client < len(self.plan.data.clients):
            return client
        names = self.clients()
        if client in names:
            return names.index(str(client))
        raise InputError(
            f"there is no client {client!r}.{did_you_mean(str(client), names)} "
            f"There are {len(names)}, 0 to {len(names) - 1}."
        )

    def view(self, client: int | str, round: int | None = None) -> Slots:
        """What a client predicts with at the selected round (or at the last one, `round=-1`)."""
        index, plan = self.index(client), self.plan
        facts = self.store.facts
        at = facts.selected if round is None else None
        unseen = index in plan.data.unseen
        state = self.store.clients([index], at)[index]
        done = facts.rounds_done - 1 if at is None else at
        server, sctx = self.store.server(at), plan.server(done)
        message = plan.method.download(sctx, server, (index,)).of(index)
        ctx = plan.context(index, done, newcomer=state is None)
        work = gather(ctx, first_client(ctx) if state is None else state, message, training=False)
        model = plan.method.personal_model(ctx, work)
        with torch.random.fork_rng(devices=[]):
            return adapt_model(plan, ctx, model, unseen) or model

    def model(self, client: int | str, round: int | None = None) -> nn.Module:
        """A client's personal model of the selected round, in evaluation mode, ready to use."""
        index = self.index(client)
        view = self.view(index, round)
        ctx = self.plan.context(index, self.plan.rounds - 1, newcomer=False)
        if predicts_its_own_way(self.plan.method):
            return Predictor(self.plan, ctx, view).eval()
        return module_of(ctx.task, view)

    def save_models(self, folder: Path | str) -> list[Path]:
        """Write every client's personal model as safetensors; load one with `load_model`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for index, name in enumerate(self.clients()):
            safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
            paths.append(folder / f"{index:04d}-{safe}.safetensors")
            state = {key: leaf.detach().clone().contiguous() for key, leaf in self.model(index).state_dict().items()}
            save_file(state, paths[-1], metadata={"method": self.config.method, "client": name})
        return paths

    def write(self) -> None:
        """Write metrics.parquet and summary.json into the run folder."""
        if self.folder is None:
            return
        write_whole(self.folder / METRICS, lambda path: self.metrics.write_parquet(path))
        text = json.dumps(self.summary, indent=2)
        write_whole(self.folder / SUMMARY, lambda path: path.write_text(text))


def module_of(task: Task, view: Slots) -> nn.Module:
    """A task's network with the weights of a view, in evaluation mode. What is tied stays tied, what is frozen stays
    frozen."""
    module = copy.deepcopy(task.module)
    module.load_state_dict({**view["params"], **view["buffers"]}, strict=False)
    return module.eval()


class Predictor(nn.Module):
    """A personal model that is more than one network's weights: an ensemble or a gated model."""

    def __init__(self, plan: Plan, ctx: Any, view: Slots) -> None:
        super().__init__()
        self._plan, self._ctx, self._slots = plan, ctx, tuple(view)
        self._names = [(slot, name) for slot, leaves in view.items() for name in leaves]
        for number, (slot, name) in enumerate(self._names):
            self.register_buffer(f"leaf{number}", view[slot][name].detach().clone())

    def view(self) -> Slots:
        """The slots that it predicts with."""
        view: Slots = {slot: {} for slot in self._slots}
        for number, (slot, name) in enumerate(self._names):
            view[slot][name] = getattr(self, f"leaf{number}")
        return view

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, in the batches that the method declares."""
        view, size = self.view(), self._plan.method.needs.eval_batch or len(x)
        return torch.cat([self._plan.method.predict(self._ctx, view, part) for part in torch.split(x, size)])


def options_tree(method: Method) -> dict[str, Any]:
    """A method's options as plain values, what it wraps under `inner`."""
    options = {name: getattr(method, name) for name in options_of(type(method))}
    return options | ({"inner": {"method": describe(method.inner)}} if isinstance(method, Wrapper) else {})


def load_model(path: Path | str, module: nn.Module) -> nn.Module:
    """Load a personal model that `Result.save_models` wrote into `module`."""
    module.load_state_dict(load_file(Path(path)))
    return module.eval()


def _version() -> str:
    from .. import __version__

    return __version__
