"""Runs in the browser while they go on: a page that looks again by itself, served to this machine alone. Whatever is
asked for but the page is refused, and so are requests for another host, whose site could lead here."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..core.errors import IdiolectError, InputError
from ..core.names import visible
from ..core.tables import Cell, Column, Table, formatter, label, scale, score_cell, unit
from ..runs.progress import clock
from ..runs.tables import describe_refusals
from .charts import Chart, Line
from .folders import read_failed
from .page import MOST_CLIENTS, environment, make_page
from .watched import Curve, Watched, find_all, mean_curve

HOST, PORT = "127.0.0.1", 8765
OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""The host names under which a browser on this machine, or at the end of a tunnel, asks."""
LONG_SILENCE = 60.0
"""After so many seconds without news, and as many as ten rounds take, it is said that there are none."""


def serve(
    folder: Path,
    port: int = PORT,
    every: float = 2.0,
    metric: str | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page until Ctrl-C; `ready` is told its address, and `port=0` takes a free one."""
    with make_server(folder, port, every, metric) as server:
        ready(f"http://{HOST}:{server.server_address[1]}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def make_server(folder: Path, port: int = PORT, every: float = 2.0, metric: str | None = None) -> ThreadingHTTPServer:
    """The server of the page of a folder, not yet serving."""
    view = View(folder, every, metric)

    class Handler(_Handler):
        pass

    Handler.view = view
    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OverflowError as error:
        raise InputError(f"port {port} is not allowed; choose one from 0 to 65535") from error
    except OSError as error:
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); choose another with --port, or any free one with --port 0"
        ) from error
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    """Answers to two paths: the page, and what its main part says now."""

    view: View
    server_version, sys_version, timeout = "idiolect", "", 10

    def do_GET(self) -> None:
        """The page or its main part; 403 to another host's name, and 404 for anything else."""
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if name not in OWN_NAMES:
            self.answer(403, "This page is for this machine only; ask for it as localhost.")
        elif self.path == "/":
            self.answer(200, self.view.page(), "html")
        elif self.path == "/now":
            self.answer(200, self.view.now(), "html")
        else:
            self.answer(404, "There is nothing here but the page itself, at /.")

    def answer(self, status: int, text: str, kind: str = "plain") -> None:
        """Send a text that nobody may keep, frame, or load from elsewhere."""
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing about requests."""


class View:
    """What is seen of a folder; it is read at most once a second, however many look."""

    def __init__(self, folder: Path, every: float, metric: str | None) -> None:
        self.folder, self.every, self.metric = folder, every, metric
        self.runs = find_all(folder)
        self._lock, self._text, self._read = threading.Lock(), "", -math.inf

    def page(self) -> str:
        """The whole page."""
        title = f"Runs in {self.folder.resolve().name}"
        return make_page("live.html", title=title, every=self.every, now=self.now(), connect="connect-src 'self'; ")

    def now(self) -> str:
        """Its main part, as far as the runs have come."""
        with self._lock:
            if time.monotonic() - self._read >= min(1.0, self.every):
                self._text = environment().get_template("now.html").render(self.look())
                self._read = time.monotonic()
            return self._text

    def look(self) -> dict[str, Any]:
        """What the template shows."""
        notes: list[str] = []
        try:
            known = {run.folder: run for run in self.runs}
            self.runs = [known.get(run.folder, run) for run in find_all(self.folder)]
        except IdiolectError as error:
            notes.append(f"{error}.")
        for run in self.runs:
            try:
                run.look()
            except IdiolectError as error:
                notes.append(f"{error}.")
        notes += [f"{name} failed: {reason}" for name, reason in read_failed(self.folder).items()]
        notes += [
            f"{run.method}, seed {run.seed}: {describe_refusals(run.refusals)}." for run in self.runs if run.refusals
        ]
        begun = [run for run in self.runs if run.done]
        try:
            metric = begun[0].metric(self.metric) if begun else self.metric or "score"
        except InputError as error:
            notes.append(f"{error}.")
            metric = begun[0].metric()
        by_method: dict[str, list[Watched]] = {}
        for run in self.runs:
            by_method.setdefault(run.method, []).append(run)
        seen = {run.folder: run.look_at_clients(metric) for run in begun}
        scores = {name: mean_curve([run.score(metric) for run in runs]) for name, runs in by_method.items()}
        losses = {name: mean_curve([run.loss for run in runs]) for name, runs in by_method.items()}
        several = ", mean over seeds" if len(self.runs) > len(by_method) else ""
        charts = [
            make_chart("score", f"Validation {metric}{several}", metric, scores),
            make_chart("loss", f"Training loss{several}", "loss", losses),
        ]
        done, rounds = sum(run.done for run in self.runs), sum(run.rounds for run in self.runs)
        return {
            "notes": notes,
            "status": describe_status(self.runs, self.folder),
            "done": done,
            "rounds": rounds,
            "charts": charts if begun else [],
            "runs": runs_table(self.runs, seen, metric),
            "clients": clients_table(by_method, seen, metric),
            "single": len(self.runs) == 1,
        }


# -- what is shown --------------------------------------------------------------------------------------


def describe_status(runs: Sequence[Watched], folder: Path) -> str:
    """How far the runs are, in a sentence."""
    complete, done, rounds = (
        sum(run.complete for run in runs),
        sum(run.done for run in runs),
        sum(r.rounds for r in runs),
    )
    if complete == len(runs):
        many = f"All {len(runs)} runs are" if len(runs) > 1 else "The run is"
        return f"{many} done. Look closer with: idiolect report {visible(str(folder))}"
    left = sum(run.seconds for run in runs) / done * (rounds - done) if done else math.nan
    pace = "" if math.isnan(left) else f", about {clock(left)} of computing left"
    of = f"{complete} of {len(runs)} runs done, " if len(runs) > 1 else ""
    return f"{of}round {done:,} of {rounds:,}{' of all' if len(runs) > 1 else ''}{pace}."


def make_chart(name: str, title: str, metric: str, curves: Mapping[str, Curve]) -> Chart:
    """Curves by round, a line per method."""
    factor, show = scale(metric), formatter(metric)
    lines = [
        Line(method, [float(round) for round in curve], [factor * value for value in curve.values()])
        for method, curve in curves.items()
    ]
    return Chart(name, title, "", "round", label(metric), lines, lambda value: show(value / factor))


def runs_table(runs: Sequence[Watched], seen: dict[Path, tuple[dict[int, float], int]], metric: str) -> Table:
    """A line per run: how far it is, what it has reached, who takes part, and what was refused."""
    scored = (label(metric), "lowest client", "highest client", "training loss")
    heads = ("run", "seed", "state", "round", "left", "time", *scored, "clients", "refused")
    columns = [Column(head) for head in heads]
    rows = []
    for run in runs:
        scores, trained = seen.get(run.folder, ({}, 0))
        finite = [score for score in scores.values() if math.isfinite(score)]
        lowest, highest = min(finite, default=math.nan), max(finite, default=math.nan)
        newest, loss = ([math.nan, *curve.values()][-1] for curve in (run.score(metric), run.loss))
        refused = sum(run.refusals.values())
        left = 0.0 if run.complete else run.left
        rows.append(
            (
                Cell(run.method, run.method),
                Cell(str(run.seed), float(run.seed) if isinstance(run.seed, int) else math.nan),
                Cell(state := describe_state(run), state),
                Cell(f"{run.done} of {run.rounds}", float(run.done)),
                Cell(clock(left), left),
                Cell(clock(run.seconds), run.seconds),
                score_cell(newest, metric),
                score_cell(lowest, metric),
                score_cell(highest, metric),
                score_cell(loss, "loss"),
                Cell(str(trained) if trained else "–", float(trained)),
                Cell(str(refused), float(refused)),
            )
        )
    note = (
        f"The {metric} is on validation data; clients are those that trained in the newest round; refused are uploads"
    )
    note += " of all rounds."
    return Table("runs", "Runs", note, tuple(columns), tuple(rows))


def describe_state(run: Watched) -> str:
    """What a run is doing, as far as its folder tells."""
    if run.complete:
        return "done"
    silent = run.silent
    if math.isnan(silent):
        return "not begun"
    if silent > max(LONG_SILENCE, 10 * run.seconds / max(1, run.done)):
        return f"no news for {clock(60 * (silent // 60))}"
    return "running"


def clients_table(
    by_method: dict[str, list[Watched]], seen: dict[Path, tuple[dict[int, float], int]], metric: str
) -> Table | None:
    """The newest validation score of every client, from the first run of each method that has begun."""
    first = {method: next((run for run in runs if run.folder in seen), None) for method, runs in by_method.items()}
    scores = {method: seen[run.folder][0] for method, run in first.items() if run is not None}
    clients = sorted(set().union(*scores.values())) if scores else []
    if not clients or len(clients) > MOST_CLIENTS:
        return None
    names = next((names for run in first.values() if run is not None and (names := run.clients)), [])
    rows = []
    for client in clients:
        name = names[client] if client < len(names) else f"position {client}"
        rows.append((Cell(name, name), *(score_cell(of.get(client, math.nan), metric) for of in scores.values())))
    columns = (Column("client"), *(Column(method, unit=unit(metric)) for method in scores))
    note = f"Newest validation {label(metric)}; of each method, its first run that has begun."
    return Table("clients", "Client by client", note, columns, tuple(rows))
