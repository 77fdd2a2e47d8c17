"""Damage is said, never shown: a flipped bit changes nothing that is read, or ends in a sentence."""

import logging
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest

import idiolect
from idiolect.core.errors import IdiolectError, RunFolderError
from idiolect.report import write_report
from idiolect.runs.export import export, personal_of
from idiolect.runs.facts import RunFacts
from idiolect.runs.lock import lock_folder
from idiolect.runs.store import Store

SMALL = {"clients": 4, "rounds": 2, "model": "linear", "engine": "loop"}
FLIPS = 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    idiolect.run("ditto", out=folder, **SMALL).store.close()
    return folder


@pytest.fixture(scope="module")
def logged(finished, tmp_path_factory):
    """The same run as a kill leaves it: all that was committed is in the log."""
    source, target = tmp_path_factory.mktemp("source") / "r", tmp_path_factory.mktemp("runs") / "logged"

    def copy(progress):
        if progress.round == 1:
            shutil.copytree(source, target)

    idiolect.run("ditto", out=source, watch=copy, **SMALL)
    (target / "lock").unlink()
    assert (target / "state.sqlite-wal").stat().st_size > 0
    return target


def contents(folder):
    """All that is read of a run, as text."""
    result = idiolect.load(folder)
    try:
        models = [result.model(i, round=at).state_dict() for i in range(4) for at in (None, -1)]
        numbers = [leaf.numpy().tobytes() for model in models for leaf in model.values()]
        return numbers, result.store.rows(), result.summary["accuracy"], result.summary["steps"]
    finally:
        result.store.close()


@pytest.mark.parametrize("name", ["state.sqlite", "state.sqlite-wal", "state.mark"])
def test_a_flipped_bit_is_said_or_changes_nothing(finished, logged, tmp_path, name):
    source = finished if name == "state.sqlite" else logged
    expected, draw, said = contents(source), random.Random(0), 0
    for number in range(FLIPS):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        data = bytearray((folder / name).read_bytes())
        place = draw.choice([at for at, byte in enumerate(data) if byte])  # most of a page is empty
        data[place] ^= 1 << draw.randrange(8)
        (folder / name).write_bytes(data)
        try:
            assert contents(folder) == expected, f"bit flipped in byte {place}"
        except IdiolectError:
            said += 1
        shutil.rmtree(folder)
    assert said > 0 or name == "state.mark"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE entries SET owner=9 WHERE owner=1", "its lists"),
        ("DELETE FROM facts WHERE key='selected'", "its lists"),
        ("DELETE FROM state WHERE id=(SELECT id FROM entries WHERE owner=1)", "the state of client 1"),
        ("UPDATE metrics SET value=value+1e-9 WHERE rowid=3", "the metrics of round 1"),
        ("DELETE FROM metrics WHERE rowid=3", "the metrics of round 1"),
    ],
)
def test_a_resume_names_what_is_damaged(finished, tmp_path, change, problem):
    shutil.copytree(finished, tmp_path / "r")
    store = Store(tmp_path / "r" / "state.sqlite")
    store._db.connection.execute(change)
    store.close()
    with pytest.raises(RunFolderError, match=f"is damaged: {problem}"):
        idiolect.resume(tmp_path / "r")


def test_rounds_that_were_lost_with_the_log_are_noticed_and_done_again(finished, logged, tmp_path, caplog):
    folder = tmp_path / "r"
    shutil.copytree(logged, folder)
    (folder / "state.sqlite-wal").unlink()
    with pytest.raises(RunFolderError, match=r"ends after round 0, but round 2 was saved.*idiolect resume"):
        idiolect.load(folder)
    with caplog.at_level(logging.WARNING, "idiolect"):
        idiolect.resume(folder).store.close()
    assert "going on with round 1" in caplog.text
    assert contents(folder) == contents(finished)


@pytest.mark.parametrize("name", ["summary.json", "metrics.parquet"])
def test_a_report_refuses_changed_numbers(finished, tmp_path, name):
    shutil.copytree(finished, tmp_path / "r")
    data = bytearray((tmp_path / "r" / name).read_bytes())
    place = data.index(b'"weighted": 0.') + 15 if name == "summary.json" else len(data) // 2
    data[place] ^= 1
    (tmp_path / "r" / name).write_bytes(data)
    with pytest.raises(RunFolderError, match=f"{name} is .*damaged.*idiolect resume"):
        idiolect.report.write_report([tmp_path / "r"], tmp_path / "report.html")


def test_a_folder_has_one_writer_and_readers_do_not_wait(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "r")
    with lock_folder(tmp_path / "r"):
        with pytest.raises(RunFolderError, match=f"is being written by process {os.getpid()} on "):
            idiolect.resume(tmp_path / "r")
        assert idiolect.load(tmp_path / "r").complete
    assert not (tmp_path / "r" / "lock").exists()


def test_a_round_that_is_not_the_next_one_is_refused(tmp_path):
    first, second = Store(tmp_path / "s.sqlite"), Store(tmp_path / "s.sqlite")
    first.commit(0, {}, {}, [], RunFacts(next_round=1))
    with pytest.raises(RunFolderError, match="round 2 is the next: another process"):
        second.commit(0, {}, {}, [], RunFacts(next_round=1))


def test_a_metric_is_stored_once(tmp_path):
    row = (0, 1, "seen", "personal", "test", "accuracy", 0.5, 3)
    with pytest.raises(RunFolderError, match=r"could not be saved.*UNIQUE"):
        Store(None).commit(0, {}, {}, [row, row], {})


def test_reading_leaves_a_folder_as_it_is(finished, tmp_path):
    """So a report and an export need no right to write into it."""
    before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
    contents(finished)
    write_report([finished], tmp_path / "page.html")
    export(personal_of(idiolect.load(finished), 0), tmp_path / "model")
    assert {path.name: path.stat().st_mtime_ns for path in finished.iterdir()} == before
    with pytest.raises(RunFolderError, match="readonly"):
        Store(finished / "state.sqlite", write=False).record({"x": 1})


def test_the_log_stays_small(tmp_path):
    idiolect.run("ditto", clients=8, rounds=6, out=tmp_path / "r", model="mlp", engine="loop")
    log = tmp_path / "r" / "state.sqlite-wal"
    assert not log.exists() or log.stat().st_size == 0


SCRIPT = """import idiolect, os
result = idiolect.run(clients=3, rounds=4, model="linear", engine="loop", watch=lambda _: os.kill(os.getpid(), {}))
print(result)"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_its_usual_effect_after_the_round_unless_told_otherwise(number):
    command = [sys.executable, "-c", SCRIPT.format(int(number))]
    usual = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (usual.returncode, usual.stdout) == (-number, "")
    settings = {"clients": 3, "rounds": 4, "model": "linear", "engine": "loop"}
    told = idiolect.run(**settings, on_interrupt="return", watch=lambda _: os.kill(os.getpid(), number))
    assert repr(told) == "Result(fedavg on digits, 1 of 4 rounds, not finished)"
    assert told.summary["finished"] is False


TWICE = """import idiolect, os, sys
resume = idiolect.resume
for _ in range(2):
    if os.fork() == 0:
        try:
            resume(sys.argv[1])
            said = "done"
        except idiolect.IdiolectError as error:
            said = str(error)
        os.write(1, f"{said}\\n".encode())
        os._exit(0)
for _ in range(2):
    os.wait()"""


def test_of_two_processes_that_resume_one_goes_on_and_the_result_is_the_same(finished, tmp_path):
    """Whoever comes second is refused with a sentence, or finds the run complete."""
    folder = tmp_path / "r"
    idiolect.run("ditto", out=folder, watch=_stop_after_the_first, on_interrupt="return", **SMALL).store.close()
    both = subprocess.run([sys.executable, "-c", TWICE, folder], capture_output=True, text=True, check=True)
    first, second = both.stdout.splitlines()
    assert "done" in (first, second)
    assert all(words == "done" or "is being written by process" in words for words in (first, second))
    assert contents(folder) == contents(finished)


def _stop_after_the_first(progress):
    if progress.round == 0:
        signal.raise_signal(signal.SIGINT)
