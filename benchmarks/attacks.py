"""Attack folders and commands, and count what happens: an attack is refused with a sentence, or it is harmless and the
results are equal to the bit. Anything else is wrong: another number, a traceback, half a file in place of a whole one.

    python benchmarks/attacks.py
    python benchmarks/attacks.py --quick                 under two minutes
    python benchmarks/attacks.py --only flips names

Attacks: random bit flips in every file of a run's folder (its state in the file, and in the write-ahead log), hostile
names of clients, two processes that resume one run, and SIGKILL at random moments of compare, tune, report and export.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import torch
import yaml
from disturb import Child, ask, draw_moments, finish, measure, start, states, without_times

import idiolect
from idiolect.core.errors import IdiolectError
from idiolect.report import read_study, write_report
from idiolect.runs.export import export, personal_of
from idiolect.runs.model_files import read_model

SETTINGS = {"clients": 4, "rounds": 3, "model": "linear", "engine": "loop", "eval_every": 1, "partition": "iid"}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
NAMES = (
    "../../evil", "a/b", "/etc/passwd", "..", ".", "", " ", "x" * 300, "two\nlines", "tab\there", "nul\0inside",
    "<script>alert(1)</script>", "a&b\"c'd", "=1+1", "a,b;c", "'; DROP TABLE metrics; --", "-rf", "--out", "CON", "7",
    "²", "😀", "\u202eevil", "\udc80", "%s %d {0}", "$HOME `id`", "$x_1^{2}$", "[bold red]x[/]", "ß", "é", "e\u0301",
)  # fmt: skip

Outcome = str
REFUSED, HARMLESS, WRONG = "refused", "harmless", "wrong"


class Tally:
    """What came of the attacks of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind, self.counts = kind, Counter[Outcome]()

    def add(self, outcome: Outcome, words: str = "") -> None:
        """Count one attack; what is wrong is printed."""
        self.counts[outcome] += 1
        if outcome == WRONG:
            print(f"  wrong: {words}", flush=True)

    def __str__(self) -> str:
        tried = sum(self.counts.values())
        parts = "  ".join(f"{outcome} {self.counts[outcome]:4d}" for outcome in (REFUSED, HARMLESS, WRONG))
        return f"{self.kind:44s} tried {tried:4d}  {parts}"


# -- bit flips -----------------------------------------------------------------------------------------------


def make_runs(place: Path) -> dict[str, Path]:
    """The same run twice: its state in the file, and, as a kill leaves it, in the write-ahead log."""
    whole, source, logged = place / "whole", place / "source", place / "logged"
    idiolect.run("ditto", out=whole, save_models=True, **SETTINGS).store.close()

    def copy(progress: Any) -> None:
        if progress.round == SETTINGS["rounds"] - 1:
            shutil.copytree(source, logged)

    idiolect.run("ditto", out=source, save_models=True, watch=copy, **SETTINGS).store.close()
    (logged / "lock").unlink()
    for name in ("summary.json", "metrics.parquet", "models"):  # of an earlier visit to a run that goes on
        (shutil.copytree if name == "models" else shutil.copy)(source / name, logged / name)
    assert (logged / "state.sqlite-wal").stat().st_size > 0
    return {"state in the file": whole, "state in the log": logged}


def readers(folder: Path) -> Iterator[Callable[[], Any]]:
    """Everything that is read of a run's folder."""

    def opened() -> Any:
        result = idiolect.load(folder)
        try:
            models = [result.model(i, round=at).state_dict() for i in range(len(result.clients())) for at in (None, -1)]
            numbers = [leaf.numpy().tobytes() for model in models for leaf in model.values()]
            return numbers, [repr(row) for row in result.store.rows()], repr(without_times(result.summary))
        finally:
            result.store.close()

    def reported() -> Any:
        (run,) = (run for of_method in read_study([folder]).runs.values() for run in of_method.values())
        costs = [(at, cost.bytes_up, cost.bytes_down) for at, cost in run.costs.items()]
        return repr(without_times(run.summary)), run.curve, run.scores, costs

    def saved() -> Any:
        models = [read_model(path) for path in sorted((folder / "models").iterdir())]
        return [(name, leaf.numpy().tobytes()) for model in models for name, leaf in sorted(model.items())]

    def resumed() -> Any:
        idiolect.resume(folder).store.close()
        return states(folder), opened(), reported(), saved()

    yield from (opened, reported, saved, resumed)


def flip(folder: Path, draw: random.Random, number: int) -> str:
    """Flip one bit in one file of a folder, and say where; all files have their turn, and of the models one of them."""
    paths = sorted(path for path in folder.iterdir() if not path.name.endswith("-shm"))
    path = paths[number % len(paths)]
    path = draw.choice(sorted(path.iterdir())) if path.is_dir() else path
    data = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place} of {path.name}"


def attack_with_flips(place: Path, count: int, seed: int, tallies: list[Tally]) -> None:
    """Flip bits, and read all that can be read, and resume."""
    for kind, source in make_runs(place).items():
        tally, draw = Tally(f"bit flips, {kind}"), random.Random(seed)
        tallies.append(tally)
        copy = place / "copy"
        shutil.copytree(source, copy)
        expected = [read() for read in readers(copy)]
        shutil.rmtree(copy)
        for number in range(count):
            shutil.copytree(source, copy)
            tally.add(*judge_flip(copy, flip(copy, draw, number), expected))
            shutil.rmtree(copy)
        print(tally, flush=True)


def judge_flip(folder: Path, where: str, expected: list[Any]) -> tuple[Outcome, str]:
    """Whether a flipped bit is refused, harmless or wrong."""
    outcome = HARMLESS
    for read, wanted in zip(readers(folder), expected, strict=True):
        try:
            if read() != wanted:
                return WRONG, f"{where}: {read.__name__} gives something else"
        except IdiolectError:
            outcome = REFUSED
        except Exception as error:
            return WRONG, f"{where}: {read.__name__} ends in {type(error).__name__}: {error}"
    return outcome, ""


# -- names ---------------------------------------------------------------------------------------------------


def attack_with_names(place: Path, count: int, seed: int, tallies: list[Tally]) -> None:
    """Run, report, save and export with names that mean something else to a file system, a page or a shell."""
    tally = Tally("hostile client names")
    tallies.append(tally)
    for number, name in enumerate(NAMES):
        inside = place / f"names-{number}"
        (inside / "deep" / "deeper").mkdir(parents=True)
        before = {path for path in place.rglob("*") if inside not in path.parents}
        outcome, words = judge_name(inside / "deep" / "deeper", name)
        strangers = {path for path in place.rglob("*") if inside not in path.parents} - before
        strangers |= {path for path in (*inside.iterdir(), *(inside / "deep").iterdir()) if "deep" not in path.name}
        tally.add(*((WRONG, f"{name!r} writes {strangers}") if strangers else (outcome, words)))
    print(tally, flush=True)


def judge_name(folder: Path, name: str) -> tuple[Outcome, str]:
    """What comes of a client's name, from the run to the files."""
    draw = torch.Generator().manual_seed(0)
    sites = {each: (torch.randn(30, 4, generator=draw), torch.arange(30) % 3) for each in (name, "other")}
    settings = {key: SETTINGS[key] for key in ("rounds", "model", "engine", "eval_every")}
    try:
        result = idiolect.run("ditto", sites, out=folder / "run", save_models=True, **settings)
        wanted = result.model(0).state_dict()
        read_model(next(iter(sorted((folder / "run" / "models").iterdir()))))
        write_report([folder / "run"], folder / "page.html")
        again = idiolect.load(folder / "run", data=dict(reversed(sites.items())))
        found = again.model(name).state_dict()
        export(personal_of(again, name), folder / "model")
        weights = read_model(folder / "model" / "model.safetensors")
    except IdiolectError as error:
        return (REFUSED, "") if "\n" not in str(error) else (WRONG, f"{name!r}: {error} has several lines")
    except Exception as error:
        return WRONG, f"{name!r} ends in {type(error).__name__}: {error}"
    if not all(torch.equal(found[key], leaf) and torch.equal(weights[key], leaf) for key, leaf in wanted.items()):
        return WRONG, f"{name!r}: another client's model"
    if "<script>alert" in (folder / "page.html").read_text():
        return WRONG, f"{name!r} is not escaped"
    return HARMLESS, ""


# -- two at once ---------------------------------------------------------------------------------------------


def attack_with_two(place: Path, count: int, seed: int, tallies: list[Tally]) -> None:
    """Stop a run and let two processes resume it at the same time."""
    tally, draw, said = Tally("two resumes at once"), random.Random(seed), place / "said"
    tallies.append(tally)
    arguments = ["run", "--method", "ditto", *FLAGS, "--rounds", "40", "--quiet"]
    usual = measure(said, *arguments, "--out", str(place / "undisturbed"))
    for number in range(count):
        folder = place / f"two-{number}"
        while not (folder / "state.sqlite").exists():
            shutil.rmtree(folder, ignore_errors=True)
            start(said, *arguments, "--out", str(folder)).kill_after(draw.uniform(0.2, 0.7) * usual)
        both = [start(place / f"said-{who}", "resume", str(folder), "--quiet") for who in range(2)]
        codes = [child.wait() for child in both]
        words = [child.words() for child in both]
        if any("Traceback" in text for text in words) or all(codes):
            tally.add(WRONG, f"exit codes {codes}: {words}")
        elif states(folder) != states(place / "undisturbed"):
            tally.add(WRONG, "the run is another one")
        else:
            tally.add(REFUSED if any(codes) else HARMLESS)
    print(tally, flush=True)


# -- kills ---------------------------------------------------------------------------------------------------


def attack_with_kills(place: Path, count: int, seed: int, tallies: list[Tally]) -> None:
    """Kill commands at random moments and call them again, until they are through."""
    said = place / "said"
    several = ["--methods", "fedavg, ditto", *FLAGS, "--quiet"]
    there, one = place / "there", place / "there" / "ditto" / "seed-0"
    finish(said, "compare", *several, "--seeds", "2", "--out", str(there))
    commands = {
        "compare": ["compare", *several, "--seeds", "2", "--save-models"],
        "tune": ["tune", *several, "--trials", "4"],
        "report": ["report", str(there), "--quiet"],
        "export": ["export", str(one), "--position", "1", "--format", "safetensors,torchscript"],
    }
    for name, arguments in commands.items():
        tally, draw = Tally(f"SIGKILL during {name}"), random.Random(seed)
        tallies.append(tally)
        ending = ".html" if name == "report" else ""
        whole = place / f"{name}-whole{ending}"
        usual = measure(said, *arguments, "--out", str(whole))
        for number, moment in enumerate(draw_moments(draw, usual, count)):
            out = place / f"{name}-{number}" / f"out{ending}"
            out.parent.mkdir()
            start(said, *arguments, "--out", str(out)).kill_after(moment)
            tally.add(*judge_kill(name, whole, out, [*arguments, "--out", str(out)], said, moment))
            shutil.rmtree(out.parent)
        print(tally, flush=True)


def judge_kill(name: str, whole: Path, out: Path, arguments: list[str], said: Path, at: float) -> tuple[Outcome, str]:
    """Whether what a kill left is whole as far as it goes, and the same command completes it."""
    where = f"{name} killed after {at:.2f} s"
    if broken := ask(said, lambda: list_broken(out)):
        return WRONG, f"{where} leaves half of {', '.join(broken)}"
    is_done = name == "export" and out.exists()  # a model is never overwritten, so the same command refuses then
    child = start(said, *arguments)
    if (child.wait() != 0) != is_done or "Traceback" in child.words():
        return WRONG, f"{where} cannot be called again: {child.words()}"
    if differ := ask(said, lambda: list_differences(out, whole)):
        return WRONG, f"{where} and called again differs in {', '.join(differ)}"
    beside = [path.name for path in out.parent.iterdir() if path != out]
    return (WRONG, f"{where} and called again leaves {', '.join(beside)}") if beside else (HARMLESS, "")


def list_broken(out: Path) -> list[str]:
    """The files that are not all of what their names promise."""
    return [path.name for path in files_in(out) if not path.name.startswith(".") and not is_whole(path)]


def list_differences(out: Path, whole: Path) -> list[str]:
    """The files that only one of two places has, or that differ."""
    left, wanted = contents(out), contents(whole)
    return [path for path in sorted(left.keys() | wanted.keys()) if left.get(path) != wanted.get(path)]


def files_in(path: Path) -> list[Path]:
    """A file, or all files of a folder."""
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def is_whole(path: Path) -> bool:
    """Whether a file is all of what its name promises."""
    try:
        match path.suffix:
            case ".json":
                json.loads(path.read_text())
            case ".jsonl":
                [json.loads(line) for line in path.read_text().splitlines()]
            case ".yaml":
                return isinstance(yaml.safe_load(path.read_text()), dict)
            case ".parquet":
                pl.read_parquet(path)
            case ".safetensors":
                read_model(path)
            case ".pt":
                torch.jit.load(path)
            case ".html":
                return path.read_text().rstrip().endswith("</html>")
            case ".md":
                return path.read_text().endswith("\n")
    except Exception:
        return False
    return True


def contents(path: Path) -> dict[str, Any]:
    """What must be equal after a command, file by file, without times. The lock's file and SQLite's own beside a store,
    which is read with them, may be left of a process that was killed."""
    files = (each for each in files_in(path) if each.name != "lock" and not each.name.endswith(("-wal", "-shm")))
    return {str(each.relative_to(path)) or path.suffix: content(each) for each in files}


def content(path: Path) -> Any:
    """What must be equal of a file."""
    match path.suffix:
        case ".json":
            return without_times(json.loads(path.read_text()))
        case ".jsonl":
            return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        case ".sqlite":
            return states(path.parent)
        case ".parquet":
            return pl.read_parquet(path).to_dicts().__repr__()
        case ".safetensors":
            return {name: leaf.numpy().tobytes() for name, leaf in read_model(path).items()}
        case ".html" | ".csv" | ".md" | ".pt":  # with times, or with the time of an archive: that they are whole counts
            return is_whole(path)
    return path.read_bytes()


# -- all of it -----------------------------------------------------------------------------------------------

ATTACKS = {"flips": attack_with_flips, "names": attack_with_names, "two": attack_with_two, "kills": attack_with_kills}
FULL = {"flips": 200, "names": 0, "two": 10, "kills": 20}
QUICK = {"flips": 20, "names": 0, "two": 1, "kills": 1}
HOUR = 3600.0
IN_A_CHILD = ("flips", "names")
"""Attacks that train in their own process, which could not fork afterwards."""


def main() -> None:
    """Attack, and end with an error if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    options = parser.parse_args()
    logging.getLogger("idiolect").setLevel(logging.ERROR)
    counts, failed = QUICK if options.quick else FULL, False
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            place, tallies = Path(folder), list[Tally]()

            def attack(name: str = name, place: Path = place, tallies: list[Tally] = tallies) -> None:
                ATTACKS[name](place, counts[name], options.seed, tallies)
                if any(tally.counts[WRONG] for tally in tallies):
                    sys.exit(1)

            if name in IN_A_CHILD:
                child = Child(attack, place / "words")
                failed |= child.wait(HOUR) != 0
                print(child.words(), end="")
            else:
                try:
                    attack()
                except SystemExit:
                    failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
