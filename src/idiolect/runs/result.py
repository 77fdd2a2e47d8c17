"""What a run leaves behind: metrics, the summary, and every client's personal model as a ready module."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from ..contract import Method, Wrapper
from ..core.checksums import checksum
from ..core.errors import InputError, RunFolderError
from ..core.files import explain, write_whole
from ..core.options import options_of
from ..core.registry import describe
from ..core.tables import escape_html, write_html
from ..core.tree import Slots
from ..data import Client
from ..data.naming import Naming
from ..engines import Plan
from ..engines.client_evaluation import adapt_model, find_adaptation
from ..engines.slots import first_client, gather
from .constants import score_constants
from .facts import RunFacts
from .folder import METRICS, SUMMARY
from .global_model import explain_no_global_model, find_global_model
from .identity import digest_of, identify
from .kept_models import find_adapted
from .predictor import make_module, module_of
from .reading import find_client, name_model_file, read_written
from .selection import beats, headline_mean
from .settings import SELECTIONS, Config
from .store import Row, Store
from .summary import describe_round, group_scores, headline, table, write_summary
from .tables import describe_run, summary_lines, summary_tables, summary_warnings

if TYPE_CHECKING:
    import polars as pl

    from .onboarding import Newcomer

SCHEMA_VERSION = 1


class Result:
    """A finished or interrupted run."""

    def __init__(self, plan: Plan, config: Config, store: Store, metric: str, point: str, folder: Path | None) -> None:
        self.plan, self.config, self.store, self.folder = plan, config, store, folder
        self.metric, self.point = metric, point
        self.fetch: Callable[[], Plan] | None = None  # makes the plan with the data, where it was opened without them

    def __repr__(self) -> str:
        """What was run, and how far."""
        done = "" if self.complete else ", not finished"
        rounds = f"{self.store.facts.rounds_done} of {self.plan.rounds} rounds{done}"
        return f"Result({self.config.method} on {self.plan.data.name}, {rounds})"

    def _repr_html_(self) -> str:
        """The same in a notebook, with the numbers of a table."""
        if not self.store.facts.rounds_done:
            return f"<p>{escape_html(repr(self))}</p>"
        summary = self.summary
        below = [*summary_lines(summary), *summary_warnings(summary)]
        return write_html(summary_tables(summary), [describe_run(summary), *below])

    def scores(self, round: int | None = None, split: str = "test") -> pl.DataFrame:
        """Each client's scores with its own model, a row per client: name, whether it trained, samples, and a column
        per metric. They are of the selected round, or of another that was evaluated, counted from 1; -1 is the last.

        >>> import idiolect
        >>> clients = {"ann": ([[0.0], [1.0]] * 9, [0, 1] * 9), "bob": ([[0.0], [1.0]] * 9, [1, 0] * 9)}
        >>> result = idiolect.run("local", clients, model="linear", rounds=40, lr=1.0)
        >>> result.scores().select("client", "cohort", "accuracy").rows()
        [('ann', 'seen', 1.0), ('bob', 'seen', 1.0)]
        """
        import polars as pl  # which takes long to import

        facts = self.store.facts
        newest = facts.rounds_done if round in (None, -1) else round
        at = facts.selected + 1 if round is None and facts.selected is not None else newest
        known = self.metrics.filter(
            (pl.col("split") == split) & pl.col("metric").is_in(list(self.plan.tasks[0].metrics))
        )
        chosen = known.filter((pl.col("round") == at) & (pl.col("point") == self.point))
        if chosen.is_empty():
            there = ", ".join(map(str, sorted(set(known["round"])))) or "none"
            raise InputError(f"there are no {split} scores of round {at}; rounds that have some: {there}")
        return chosen.pivot("metric", index=["name", "cohort", "samples"], values="value").rename({"name": "client"})

    @property
    def metrics(self) -> pl.DataFrame:
        """One row per round, client, point, split and metric; `client` is a position, `name` the client's name."""
        return table(self.store.rows(), self.clients())

    @property
    def complete(self) -> bool:
        """Whether all rounds are done."""
        return self.store.facts.rounds_done >= self.plan.rounds

    @property
    def lacks_data(self) -> bool:
        """Whether it was opened from its folder alone, and nothing has asked for the data since."""
        return self.fetch is not None

    def plan_with_data(self) -> Plan:
        """The plan with the clients' data: of a run that was opened without them, they are now loaded by the name of
        their source and compared with those it was trained on; an error where they were given in Python, or differ."""
        if self.fetch is not None:
            self.plan = self.fetch()
            self.fetch = None
        return self.plan

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The numbers of a table, as written to summary.json, when they are first asked for."""
        if self.lacks_data and self.folder is not None:
            written = read_written(self.folder)
            if written.get("rounds_done") == self.store.facts.rounds_done and "identity" in written:
                return {name: value for name, value in written.items() if name != "files"}
        return self._summarize(self.store.rows(split="test"))

    def _summarize(self, rows: list[Row]) -> dict[str, Any]:
        """The summary, from the rows of the test data."""
        plan, facts = self.plan, self.store.facts
        higher = plan.tasks[0].metrics[self.metric].higher_is_better
        selected = -1 if facts.selected is None else facts.selected
        tests = group_scores(row for row in rows if row[5] == self.metric)
        mean, constants = (
            headline_mean(self.config.select),
            {} if self.lacks_data else score_constants(plan, self.metric),
        )

        def scores(cohort: str, point: str) -> dict[str, Any]:
            return headline(
                tests.get((cohort, point), {}), selected, higher, lambda new, best: beats(new, best, mean, higher)
            )

        unseen = scores("unseen", "adapted") or scores("unseen", "personal")
        local, common = scores("seen", "after_local"), scores("seen", "global")
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
            "networks": [
                {"parameters": task.parameters_total, "trained": task.parameters_trained} for task in plan.tasks
            ],
            **({"names": names} if (names := _short_names(plan.data.names)) else {}),
            **({"labels": plan.data.own_labels} if plan.data.own_labels else {}),
            "seed": self.config.seed,
            "rounds": plan.rounds,
            "rounds_done": facts.rounds_done,
            "finished": facts.rounds_done >= plan.rounds,
            "engine": facts.engine or self.config.engine,
            "calibration": facts.calibration,
            "metric": self.metric,
            "direction": "higher" if higher else "lower",
            "point": self.point,
            "selection": facts.selection or SELECTIONS[self.config.select],
            "headline": mean,
            **({} if plan.eval_clients is None else {"evaluated_clients": len(plan.evaluated)}),
            self.metric: scores("seen", self.point),
            **({} if self.point == "personal" else {"before_adaptation": scores("seen", "personal")}),
            **({"after_local": local} if local else {}),
            **({"global": common} if common else {}),
            **({"unseen": unseen} if unseen else {}),
            "others": self._score_others(rows, selected),
            **({"constants": constants} if constants else {}),
            "bytes_up": facts.bytes_up,
            "bytes_down": facts.bytes_down,
            "bytes_eval": facts.bytes_eval,
            "steps": facts.steps,
            "gradients": facts.gradients,
            "passes": facts.passes,
            "refused": facts.refused,
            "refusals": facts.refusals,
            "idle": facts.idle,
            **({"dropped": facts.dropped, "late": facts.late} if facts.dropped or facts.late else {}),
            "seconds": round(facts.seconds, 3),
            "server_mb": round(facts.server_mb, 3),
            "peak_memory_mb": round(facts.peak_memory_mb, 1),
            "config_hash": self.config.hash,
            "identity": digest_of(self.store) if self.lacks_data else identify(plan, self.config).digests(),
            "versions": {"idiolect": _version(), "torch": torch.__version__, "python": platform.python_version()},
        }

    def _score_others(self, rows: list[Row], selected: int) -> dict[str, Any]:
        """The spread over clients of the metrics beside the headline, at the selected round or else the last."""
        others = {}
        for name, metric in self.plan.tasks[0].metrics.items():
            by_round = group_scores(row for row in rows if row[5] == name).get(("seen", self.point), {})
            if name != self.metric and by_round:
                at, everybody = (
                    selected if selected in by_round else max(by_round),
                    set[int]().union(*by_round.values()),
                )
                block = describe_round(by_round[at], len(everybody), metric.higher_is_better)
                others[name] = block | {"direction": "higher" if metric.higher_is_better else "lower"}
        return others

    def clients(self) -> list[str]:
        """The clients' names, in order."""
        return list(self.plan.data.client_names)

    def index(self, client: int | str) -> int:
        """A client's position: a text is a name, a whole number a position."""
        return find_client(self.clients(), client)

    def personal_slots(self, client: int | str, round: int | None = None) -> Slots:
        """What a client predicts with at the selected round, or at another that is kept, counted from 1; -1 is the
        last one."""
        index, plan = self.index(client), self.plan
        facts = self.store.facts
        at = find_round(facts, round)
        unseen = index in plan.data.unseen
        state = self.store.clients([index], at)[index]
        done = facts.rounds_done - 1 if at is None else at
        server, sctx = self.store.server(at), plan.server(done)
        message = plan.method.download(sctx, server, (index,)).of(index)
        ctx = plan.context(index, done, newcomer=state is None)
        work = gather(ctx, first_client(ctx) if state is None else state, message, training=False)
        model = plan.method.personal_model(ctx, work)
        if self.lacks_data and find_adaptation(ctx, unseen):
            if kept := find_adapted(self, index, at):
                return kept
            plan = self.plan_with_data()
            ctx = plan.context(index, done, newcomer=state is None)
        with torch.random.fork_rng(devices=[]):
            return adapt_model(plan, ctx, model, unseen) or model

    def model(self, client: int | str, round: int | None = None) -> nn.Module:
        """A client's personal model of the selected round, in evaluation mode, ready to use. `round` may name the last
        one instead, by its number or as -1; a run keeps no other."""
        index = self.index(client)
        personal = self.personal_slots(index, round)
        ctx = self.plan.context(index, self.plan.rounds - 1, newcomer=False)
        return make_module(ctx, personal)

    def global_slots(self, round: int | None = None) -> Slots:
        """The shared model itself at the selected round, or at another that is kept, as in `personal_slots`."""
        facts, plan = self.store.facts, self.plan
        at = find_round(facts, round)
        model = find_global_model(plan, self.store.server(at), facts.rounds_done - 1 if at is None else at)
        if model is None:
            raise InputError(
                f"there is no shared model to take out of the run: {explain_no_global_model(plan)}; take a client's "
                "personal model instead"
            )
        return model

    def global_model(self, round: int | None = None) -> nn.Module:
        """The shared model itself, which predicts without anything of a client, in evaluation mode; `round` is as in
        `model`. An error where the method has none."""
        return module_of(self.plan.tasks[0], self.global_slots(round))

    def onboard(
        self,
        x: Any,
        y: Any = None,
        *,
        name: str = "newcomer",
        split: Sequence[float] | None = None,
        network: int = 0,
        round: int | None = None,
    ) -> Newcomer:
        """Give a client that took no part in the run its personal model, as the method does for unseen clients, with
        scores before and after. The run stays as it is.

        Args:
            x, y: its inputs and targets, raw as the run's were; or a dataset, a mapping of splits or a `Client`.
            name: a name for it, which no client of the run has.
            split: shares of training, validation and test; by default 60/20/20.
            network: which of several networks it has.
            round: the round of the model: the selected one, or -1, the last.

        >>> import idiolect
        >>> clients = {"ann": ([[0.0], [1.0]] * 9, [0, 1] * 9), "bob": ([[0.0], [1.0]] * 9, [0, 1] * 9)}
        >>> result = idiolect.run("fedrep", clients, model="mlp(hidden=[4])", rounds=5, lr=0.5)
        >>> carl = result.onboard([[0.0], [1.0]] * 9, [1, 0] * 9, name="carl")
        >>> carl, carl.scores()["point"].to_list(), carl.model()(torch.zeros(1, 1)).shape
        (Newcomer('carl', fedrep), ['personal', 'adapted'], torch.Size([1, 2]))
        """
        from .onboarding import check_client, make_client, onboard

        if isinstance(x, Client):
            client = check_client(self.plan.data, x)
        else:
            client = make_client(self.plan.data, name, x if y is None else (x, y), split, self.config.seed)
        return onboard(self, client, network, round)

    def save_models(self, folder: Path | str) -> list[Path]:
        """Write every client's personal model of the selected round, a file each that stands alone: `load_model` opens
        it without the run and the data, `read_card` says what it is."""
        from .export import personals_of, write_weights

        folder, paths = Path(folder), []
        networks: dict[int, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for personal in personals_of(self, range(len(self.clients()))):
                paths.append(folder / name_model_file(personal.index, personal.client))
                write_weights(personal, paths[-1], networks)
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"the models cannot be written to {folder}: {explain(error)}") from error
        return paths

    def write(self) -> None:
        """Write metrics.parquet and summary.json, with checksums of both, into the run folder. The metrics are many, so
        they are read once for both."""
        if self.folder is None:
            return
        rows = self.store.rows()
        write_whole(self.folder / METRICS, lambda path: table(rows, self.clients()).write_parquet(path))
        self.__dict__["summary"] = self._summarize([row for row in rows if row[4] == "test"])
        written = {METRICS: checksum((self.folder / METRICS).read_bytes())}
        text = write_summary({**self.summary, "files": written})
        write_whole(self.folder / SUMMARY, lambda path: path.write_text(text))


def find_round(facts: RunFacts, round: int | None) -> int | None:
    """The round to look up in a store, counted from 0; None is the newest. An error if that round is not kept.

    >>> find_round(RunFacts(next_round=6, selected=3), None), find_round(RunFacts(next_round=6, selected=3), 6)
    (3, None)
    """
    if round is None:
        return facts.selected
    if round in (-1, facts.rounds_done):
        return None
    if facts.selected is not None and round == facts.selected + 1:
        return facts.selected
    chosen = "" if facts.selected is None else f"{facts.selected + 1}, which was selected, and "
    raise InputError(
        f"round {round} is not kept, so there is no model of it; a run keeps its rounds {chosen}{facts.rounds_done},"
        " the last"
    )


def options_tree(method: Method) -> dict[str, Any]:
    """A method's options as plain values, what it wraps under `inner`."""
    known = {name: getattr(method, name) for name in options_of(type(method))}
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}
    return options | ({"inner": {"method": describe(method.inner)}} if isinstance(method, Wrapper) else {})


def _short_names(names: Naming) -> dict[str, list[str]]:
    """What the data call classes and features; words are too many for a summary."""
    return {kind: listed for kind, listed in names.as_dict().items() if kind != "words"}


def _version() -> str:
    from .. import __version__

    return __version__
