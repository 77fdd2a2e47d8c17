"""Comparisons: identical conditions, continuing, refusing what does not fit, own objects, several processes."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
from importlib import import_module

import pytest
import torch
import yaml
from torch import nn

import idiolect
from idiolect.comparison.api import compare, resume_comparison
from idiolect.comparison.conditions import choose_engine, count_fedavg_gradients
from idiolect.comparison.entrants import resolve_seeds
from idiolect.contract.method import methods
from idiolect.core.checksums import add_checksum, take_checksum
from idiolect.core.errors import InputError, RunFolderError, UnknownNameError
from idiolect.core.names import slug
from idiolect.data import Client
from idiolect.report import read_study
from idiolect.runs.progress import Reporter
from idiolect.runs.settings import configure
from idiolect.runs.setup import make_plan

SMALL = {"clients": 4, "rounds": 2, "partition": "dirichlet:0.5", "model": "linear"}
main_thread = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread only"
)


class Listener(Reporter):
    """Counts the runs that were started and can interrupt at a round."""

    def __init__(self, interrupt: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.started, self.interrupt = [], interrupt

    def start(self, label, rounds, done=0):
        super().start(label, rounds, done)
        self.started.append((label, done))

    def step(self, label, round):
        super().step(label, round)
        if self.interrupt and label == self.interrupt[0] and round.round == self.interrupt[1]:
            os.kill(os.getpid(), signal.SIGINT)


def scores(comparison):
    return {each.method: each.scores for each in comparison.rows}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison") / "x"
    return folder, compare("local, fedavg, fedprox(mu=0.5)", seeds=2, out=folder, **SMALL)


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of a finished comparison that a test may damage."""
    return shutil.copytree(finished[0], tmp_path / "copy")


def test_every_method_has_the_same_conditions(finished):
    folder, _ = finished
    for seed in (0, 1):
        held = {}
        for path in sorted(folder.glob(f"*/seed-{seed}")):
            result = idiolect.load(path)
            identity = result.store.fact("identity")
            del identity["config"]["method"], identity["code"]["method"]  # in which alone they differ
            held[path.parent.name] = identity
            result.store.close()
        assert len(held) == 3
        assert len({json.dumps(each, sort_keys=True) for each in held.values()}) == 1


def test_sampled_clients_are_the_same_for_every_method(tmp_path):
    compare("local, fedavg, ditto", seeds=1, out=tmp_path / "x", participation=0.5, **SMALL)
    sampled = set()
    for path in (tmp_path / "x").glob("*/seed-0"):
        result = idiolect.load(path)
        losses = result.metrics.filter(metric="loss", point="train").select("round", "client").unique().sort("round")
        sampled.add(str(losses.sort("round", "client").rows()))
        result.store.close()
    assert len(sampled) == 1


def test_a_run_of_a_comparison_equals_the_run_alone(finished):
    _, comparison = finished
    alone = idiolect.run("fedprox(mu=0.5)", seed=1, **SMALL).summary
    assert comparison["fedprox(mu=0.5)"].scores[1] == alone["accuracy"]["selected"]["weighted"]


def test_files_of_a_comparison(finished):
    folder, comparison = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("comparison.yaml", "comparison.json", "comparison.csv", "comparison.md"),
        *("local", "fedavg", "fedprox-mu=0.5"),
    }
    held = json.loads((folder / "comparison.json").read_text())
    assert [run["folder"] for run in held["runs"]][:2] == ["local/seed-0", "fedavg/seed-0"]
    assert held["protocol"]["seeds"] == [0, 1]
    assert set(held["protocol"]["partition"]["hashes"]) == {"0", "1"}
    assert comparison.folder == folder


def test_a_finished_comparison_is_not_run_again(finished):
    folder, comparison = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/summary.json")}
    told = Listener()
    again = compare("local, fedavg, fedprox(mu=0.5)", seeds=2, out=folder, reporter=told, **SMALL)
    assert told.started == []
    assert scores(again) == scores(comparison)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*/summary.json")} == before


def test_methods_and_seeds_can_be_added(copied):
    told = Listener()
    grown = compare("local, fedavg, fedprox(mu=0.5), fedper", seeds=3, out=copied, reporter=told, **SMALL)
    assert len(told.started) == 2 + 4
    assert grown.protocol["seeds"] == [0, 1, 2]
    assert len(grown.rows) == 4


def test_methods_and_seeds_cannot_be_dropped(copied):
    with pytest.raises(RunFolderError, match=r"fedprox\(mu=0\.5\) took part there, but not now"):
        compare("local, fedavg", seeds=2, out=copied, **SMALL)
    with pytest.raises(RunFolderError, match="seed 1 took part"):
        compare("local, fedavg, fedprox(mu=0.5)", seeds=1, out=copied, **SMALL)


def test_a_method_that_never_finished_a_run_can_be_dropped(copied):
    for summary in (copied / "local").glob("*/summary.json"):
        summary.unlink()
    assert len(compare("fedavg, fedprox(mu=0.5)", seeds=2, out=copied, **SMALL).rows) == 2


def test_other_settings_are_refused_and_named(copied):
    with pytest.raises(RunFolderError, match=r"rounds: 2 there, 3 now; lr: 0\.05 there, 0\.1 now"):
        compare("local, fedavg, fedprox(mu=0.5)", seeds=2, out=copied, **SMALL | {"rounds": 3, "lr": 0.1})


def test_a_run_of_another_comparison_is_refused(copied, finished):
    config = copied / "local" / "seed-0" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2", "rounds: 4"))
    with pytest.raises(RunFolderError, match="rounds: 4 there, 2 now"):
        resume_comparison(copied)


def test_other_data_are_refused(copied):
    summary = copied / "local" / "seed-0" / "summary.json"
    held = take_checksum(json.loads(summary.read_text()))
    summary.write_text(json.dumps(add_checksum(held | {"data_hash": "somethingelse"})))
    with pytest.raises(RunFolderError, match="data: somethingelse there"):
        resume_comparison(copied)


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}"])
def test_a_damaged_summary_is_written_anew(copied, finished, damage):
    (copied / "local" / "seed-1" / "summary.json").write_text(damage)
    assert scores(resume_comparison(copied)) == scores(finished[1])
    assert json.loads((copied / "local" / "seed-1" / "summary.json").read_text())["rounds_done"] == 2


def test_a_damaged_comparison_file_is_refused(copied):
    (copied / "comparison.yaml").write_text("rounds: 2\n")
    with pytest.raises(RunFolderError, match="lists no methods and no seeds"):
        resume_comparison(copied)


def test_runs_that_are_run_anew_are_removed_at_once(copied, finished, monkeypatch):
    """If a kill comes while they are removed, nothing of the old runs is taken for the new ones."""

    def killed(path, **_):
        if path.exists():
            raise KeyboardInterrupt

    settings = {"methods": "local, fedavg, fedprox(mu=0.5)", "seeds": 2, "rerun": "local", "out": copied, **SMALL}
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            compare(**settings)
    assert len(list(copied.glob("local/seed-*"))) == 1
    assert set(read_study([copied]).runs["local"]) == {1}
    assert scores(compare(**settings)) == scores(finished[1])
    assert not list(copied.rglob("*.part"))


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds no comparison"):
        compare("local", out=tmp_path, **SMALL)
    with pytest.raises(RunFolderError, match="holds no comparison"):
        resume_comparison(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@main_thread
def test_an_interrupted_comparison_goes_on_where_it_stopped(tmp_path, finished):
    told = Listener(interrupt=("fedavg seed 0", 0))
    with pytest.raises(KeyboardInterrupt):
        compare("local, fedavg, fedprox(mu=0.5)", seeds=2, out=tmp_path / "x", reporter=told, **SMALL)
    assert not (tmp_path / "x" / "comparison.json").exists()
    told = Listener()
    comparison = resume_comparison(tmp_path / "x", reporter=told)
    assert told.started[0] == ("fedavg seed 0", 1)
    assert len(told.started) == 5
    assert scores(comparison) == scores(finished[1])


@main_thread
def test_several_processes_give_the_same_and_can_be_interrupted(tmp_path, finished):
    arguments = {"seeds": 2, "out": tmp_path / "x", "jobs": 2, **SMALL}
    with pytest.raises(KeyboardInterrupt):
        compare("local, fedavg, fedprox(mu=0.5)", reporter=Listener(interrupt=("fedavg seed 0", 0)), **arguments)
    told = Listener()
    comparison = compare("local, fedavg, fedprox(mu=0.5)", reporter=told, **arguments)
    assert 3 <= len(told.started) <= 6
    assert scores(comparison) == scores(finished[1])
    assert told.rounds_done == told.rounds


@main_thread
def test_an_interrupt_reaches_the_processes(tmp_path):
    told = Listener(interrupt=("fedavg seed 0", 0))
    with pytest.raises(KeyboardInterrupt):
        compare("local, fedavg", seeds=1, out=tmp_path / "x", jobs=2, reporter=told, **SMALL | {"rounds": 300})
    done = [json.loads(path.read_text())["rounds_done"] for path in (tmp_path / "x").glob("*/*/summary.json")]
    assert done
    assert max(done) < 300


def test_an_error_in_a_process_reaches_the_user(tmp_path, finished):
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    for seed in (0, 1):
        (folder / "local" / f"seed-{seed}" / "summary.json").unlink()
        for path in (folder / "local" / f"seed-{seed}").glob("state.sqlite*"):
            path.write_bytes(b"this is no store of a run" * 400)
    with pytest.raises(RunFolderError, match=r"state\.sqlite"):
        resume_comparison(folder, jobs=2)


def test_all_takes_the_registry_and_names_what_cannot_run():
    clients = [(torch.randn(12, 3), torch.randint(0, 2, (12,))) for _ in range(3)]
    comparison = compare("all", clients, seeds=1, rounds=1, model="mlp(hidden=[4])")
    taken = {each.method for each in comparison.rows}
    assert {"fedavg", "local", "fedprox"} <= taken
    assert len(taken) + len(comparison.skipped) == len(list(methods))
    assert all(comparison.skipped.values())


def test_own_objects(tmp_path):
    clients = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(3)]
    own = {"model": nn.Linear(3, 1), "metrics": {"off": idiolect.Metric(lambda o, y: (o - y).abs().mean(), False)}}
    comparison = compare(
        ["local", idiolect.contract.methods.build("fedavg")], clients, seeds=[3, 5], rounds=2, out=tmp_path / "x", **own
    )
    assert comparison.protocol["metric"] == "off"
    assert comparison.protocol["direction"] == "lower"
    assert comparison.rows[0].selected.mean <= comparison.rows[1].selected.mean
    with pytest.raises(RunFolderError, match=r"own data, model.*data=\.\.\., model=\.\.\."):
        resume_comparison(tmp_path / "x")
    again = resume_comparison(tmp_path / "x", data=clients, **own)
    assert scores(again) == scores(comparison)
    others = [(x + 1, y) for x, y in clients]
    with pytest.raises(RunFolderError, match=r"data: .* there, .* now"):
        resume_comparison(tmp_path / "x", data=others, **own)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"methods": "fedavgg"}, "Did you mean fedavg"),
        ({"methods": "fedprox(mu=-1)"}, r"mu must lie in \[0, inf\)"),
        ({"methods": ""}, "no methods"),
        ({"methods": "fedavg, local, fedavg()"}, "fedavg is given twice"),
        ({"seeds": 0}, "at least one seed"),
        ({"seeds": "1,1"}, "all different"),
        ({"seeds": "few"}, "how many, as in 3"),
        ({"baseline": "ditto"}, "ditto is not among the methods"),
        ({"baseline": "fedproxx"}, "Did you mean fedprox"),
        ({"method": "fedavg"}, "several methods"),
        ({"rouns": 3}, "Did you mean rounds"),
        ({"clients": 5000}, "1797 samples cannot be dealt to 5000"),
        ({"jobs": 2, "out": None}, "needs a folder"),
        ({"methods": "fedper(layers=9)"}, "layers"),
    ],
)
def test_bad_input_is_found_before_anything_is_written(tmp_path, named, message):
    arguments = {"methods": "local, fedavg", "out": tmp_path / "x", **SMALL} | named
    with pytest.raises(InputError, match=message):
        compare(**arguments)
    assert not (tmp_path / "x").exists()


def test_without_test_data_nothing_can_be_compared(tmp_path):
    with pytest.raises(InputError, match="has no test data, so nothing can be compared"):
        compare("local, fedavg", split=[0.8, 0.2, 0.0], out=tmp_path / "a", **SMALL)
    assert not (tmp_path / "a").exists()


def test_unknown_names_are_that():
    with pytest.raises(UnknownNameError):
        compare("nonsense", **SMALL)


def test_seeds():
    assert resolve_seeds(2, first=7) == [7, 8]
    assert resolve_seeds("2", first=7) == [7, 8]
    assert resolve_seeds("0,5,7", first=1) == [0, 5, 7]
    assert resolve_seeds([4], first=1) == [4]


def test_the_budget_is_what_fedavg_takes():
    for settings in (SMALL, SMALL | {"participation": 0.5, "local_epochs": 2, "batch_size": 7}):
        steps = idiolect.run("fedavg", **settings).summary["steps"]
        assert count_fedavg_gradients(make_plan(configure({**settings, "method": "ditto"}), {})) == steps


def test_the_budget_is_counted_without_looking_at_data(monkeypatch):
    plan = make_plan(configure({**SMALL, "method": "fedavg"}), {})
    monkeypatch.setattr(Client, "take", lambda *_: pytest.fail("samples were gathered"))
    assert count_fedavg_gradients(plan) > 0


def test_the_baseline_can_be_chosen(finished):
    folder, _ = finished
    comparison = compare("local, fedavg, fedprox(mu=0.5)", seeds=2, out=folder, baseline="local", **SMALL)
    assert comparison["local"].versus is None
    assert comparison["fedavg"].versus.difference == pytest.approx(
        comparison["fedavg"].selected.mean - comparison["local"].selected.mean
    )
    assert yaml.safe_load((folder / "comparison.yaml").read_text())["baseline"] == "local"


def test_auto_is_resolved_once_for_all_runs(copied):
    held = {yaml.safe_load(path.read_text())["engine"] for path in copied.glob("*/*/config.yaml")}
    assert held == {yaml.safe_load((copied / "comparison.yaml").read_text())["engine"]} == {"loop"}
    compare("local, fedavg, fedprox(mu=0.5)", seeds=2, out=copied, engine="auto", **SMALL)
    with pytest.raises(RunFolderError, match="engine: loop there, workers now"):
        compare("local, fedavg, fedprox(mu=0.5)", seeds=2, out=copied, engine="workers", **SMALL)


def test_runs_at_a_time_share_the_cores(monkeypatch):
    plan = make_plan(configure(SMALL), {})
    module = import_module("idiolect.comparison.conditions")
    monkeypatch.setattr(module, "resolve", lambda text, plan, one_machine: ("workers(count=8)", {}))
    monkeypatch.setattr(module, "cores", lambda: 8)
    assert choose_engine("auto", plan, jobs=1) == "workers(count=8)"
    assert choose_engine("auto", plan, jobs=4) == "workers(count=2)"
    assert choose_engine("workers(count=8)", plan, jobs=4) == "workers(count=8)"


def test_folder_names():
    assert slug("fedavg") == "fedavg"
    assert slug("fedlag(fedavg, xi=-0.1)") == "fedlag-fedavg-xi=-0.1"
    assert slug("../up.py:Mine").startswith("up.py-Mine-")
    assert len(slug("x" * 500)) < 120
    similar = ["finetune(ditto(epochs=2))", "finetune(ditto, epochs=2)", "a(b=[1])", "a(b=-1)", "a(b=1)", "a(b(c=1))"]
    assert len({slug(each) for each in similar}) == len(similar)


def test_the_shared_models_have_a_table_that_shows_who_has_none():
    settings = {"clients": 4, "rounds": 1, "model": "linear", "eval_global": True, "engine": "loop"}
    board = idiolect.compare("ditto, local", "digits", seeds=1, **settings)
    ditto = idiolect.run("ditto", "digits", **settings)
    assert board["ditto"].shared.mean == ditto.summary["global"]["selected"]["weighted"]
    assert board["local"].shared is None
    table = str(board).partition("The shared model itself")[2]
    assert "| local | none | none |" in table
    assert board.as_dict()["methods"][-1].keys() >= {"shared", "unseen"}


def test_a_script_that_is_read_again_by_its_own_processes_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(InputError, match="put the comparison under if __name__ == '__main__'"):
        compare("local, fedavg", "digits", jobs=2, out=tmp_path / "out")
