"""Loggers pass on every round and the result, and never stop a run."""

import sys
from types import SimpleNamespace

import pytest

import idiolect
from idiolect.core.errors import InputError, MissingExtraError
from idiolect.report import loggers
from idiolect.runs.progress import Reporter
from idiolect.runs.round_loop import Progress

QUICK = {"clients": 3, "rounds": 2, "seeds": 1, "model": "linear", "engine": "loop"}


def compared(*logs):
    with loggers.with_logs(Reporter(), logs) as told:
        return idiolect.compare("local, fedavg", reporter=told, **QUICK)


def test_without_logs_the_reporter_is_itself():
    told = Reporter()
    assert loggers.with_logs(told, None) is told
    assert loggers.with_logs(told, []) is told


def test_several_are_told_the_same():
    class Noted(Reporter):
        def __init__(self):
            super().__init__()
            self.heard = []

        def __getattribute__(self, name):
            if name in ("begin", "start", "step", "end"):
                object.__getattribute__(self, "heard").append(name)
            return object.__getattribute__(self, name)

    both = [Noted(), Noted()]
    with loggers.Several(both) as told:
        idiolect.compare("fedavg", reporter=told, **QUICK)
    assert both[0].heard == both[1].heard
    assert both[0].heard == ["begin", "start", "step", "step", "end"]


@pytest.mark.parametrize("text", ["", "tensorboard", "tensorboard:", "wandb:x", "mlflow"])
def test_what_cannot_be_read_gets_a_sentence(text):
    with pytest.raises(InputError, match="write tensorboard:DIR or mlflow:URI"):
        loggers.logger(text)


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [("tensorboard:x", "torch.utils.tensorboard", "tensorboard"), ("mlflow:x", "mlflow.tracking", "mlflow")],
)
def test_what_is_not_installed_is_named(monkeypatch, text, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    with pytest.raises(MissingExtraError, match=rf"pip install idiolect\[{extra}\]"):
        loggers.logger(text)


def test_tensorboard_holds_every_round_and_the_result(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = compared(f"tensorboard:{tmp_path}")
    held = EventAccumulator(str(tmp_path / "fedavg" / "seed-0")).Reload()
    assert [each.step for each in held.Scalars("train/loss")] == [1, 2]
    assert [each.step for each in held.Scalars("validation/score")] == [1, 2]
    (result,) = held.Scalars("result/accuracy/selected/weighted")
    assert result.value == pytest.approx(board["fedavg"].selected.mean)
    assert (tmp_path / "local" / "seed-0").is_dir()


class Client:
    """A stand-in for MLflow's client."""

    def __init__(self, tracking_uri):
        if tracking_uri == "nowhere":
            raise OSError("no such server\nsecond line")
        self.runs, self.fails = {}, tracking_uri == "broken"

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "1"

    def create_run(self, experiment, run_name):
        self.runs[run_name] = {"metrics": [], "params": {}, "state": "RUNNING"}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_batch(self, run_id, metrics, params):
        if self.fails and metrics:
            raise ConnectionError("the server is gone")
        self.runs[run_id]["metrics"] += metrics
        self.runs[run_id]["params"] |= dict(params)

    def set_terminated(self, run_id, state):
        self.runs[run_id]["state"] = state


@pytest.fixture
def mlflow(monkeypatch):
    entities = SimpleNamespace(Metric=lambda *each: each, Param=lambda *each: each)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=Client))


def test_mlflow_gets_a_run_for_every_run(mlflow):
    told = loggers.logger("mlflow:http://server")
    with told:
        idiolect.compare("local, fedavg", reporter=told, **QUICK)
    assert list(told.client.runs) == ["local seed 0", "fedavg seed 0"]
    held = told.client.runs["fedavg seed 0"]
    assert (held["params"]["method"], held["params"]["seed"], held["state"]) == ("fedavg", "0", "FINISHED")
    assert [step for name, _, _, step in held["metrics"] if name == "train/loss"] == [1, 2]


def test_an_interrupted_run_is_marked(mlflow):
    told = loggers.logger("mlflow:http://server")
    with told:
        told.start("fedavg", 2)
    assert told.client.runs["fedavg"]["state"] == "KILLED"


def test_an_interrupted_run_that_has_a_summary_is_marked(mlflow):
    told = loggers.logger("mlflow:http://server")
    with told:
        told.start("fedavg", 2)
        told.end("fedavg", {"metric": "accuracy", "rounds": 2, "rounds_done": 1})
    assert told.client.runs["fedavg"]["state"] == "KILLED"


def test_a_run_that_fails_is_marked(mlflow):
    told = loggers.logger("mlflow:http://server")
    told.start("fedavg", 2)
    told.__exit__(InputError, InputError("wrong"), None)
    assert told.client.runs["fedavg"]["state"] == "FAILED"


def test_a_server_that_fails_stops_no_run(mlflow, caplog):
    board = compared("mlflow:broken")
    assert {each.method for each in board.rows} == {"local", "fedavg"}
    assert caplog.text.count("MLflow failed") == 1


def test_a_server_that_is_not_there_gets_a_sentence(mlflow):
    with pytest.raises(InputError, match=r"^MLflow at nowhere cannot be used: no such server$"):
        loggers.logger("mlflow:nowhere")


def test_what_is_not_a_number_is_left_out():
    round = Progress(0, 2, clients=1, loss=float("nan"), score=float("inf"), seconds=1.0, samples=5)
    assert loggers.scalars(round) == {"round/seconds": 1.0, "round/samples_per_second": 5.0}
