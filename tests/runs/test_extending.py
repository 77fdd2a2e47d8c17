"""A run that is trained further ends where a run of all rounds ends, to the bit, or is refused."""

import pytest

import idiolect
from idiolect.core.errors import InputError, RunFolderError
from idiolect.runs.api import open_run
from idiolect.runs.folder import CONFIG
from idiolect.runs.settings import write_config
from idiolect.testing import tiny_federation, tiny_model

QUICK = {"engine": "loop", "batch_size": 4, "lr": 0.1, "participation": 0.5}


def start(method, folder, **changes):
    return idiolect.run(method, tiny_federation(), model=tiny_model(), out=folder, **{**QUICK, **changes})


def known(folder):
    return {"data": tiny_federation(), "model": tiny_model()}


def leaves(result):
    states = {"server": result.store.server(), **dict(enumerate(result.store.clients(range(5)).values()))}
    return {
        (w, s, n): leaf for w, slots in states.items() for s, tree in (slots or {}).items() for n, leaf in tree.items()
    }


COUNTED = (
    "steps",
    "bytes_up",
    "bytes_down",
    "bytes_eval",
    "rounds",
    "rounds_done",
    "config_hash",
    "accuracy",
    "finished",
)


@pytest.mark.parametrize("method", ["scaffold", "ditto", "fedlag(warmup=1, k=1)"])
def test_it_ends_where_a_run_of_all_rounds_ends(method, tmp_path):
    whole = start(method, tmp_path / "whole", rounds=4, schedule="exponential(gamma=0.9)")
    start(method, tmp_path / "more", rounds=2, schedule="exponential(gamma=0.9)")
    more = idiolect.resume(tmp_path / "more", rounds=4, **known(tmp_path))
    one, other = leaves(whole), leaves(more)
    assert one.keys() == other.keys()
    assert all(leaf.equal(other[name]) for name, leaf in one.items())
    assert [row[:] for row in whole.store.rows()] == [row[:] for row in more.store.rows()]
    assert {name: whole.summary[name] for name in COUNTED} == {name: more.summary[name] for name in COUNTED}
    assert idiolect.load(tmp_path / "more", **known(tmp_path)).plan.rounds == 4
    idiolect.resume(tmp_path / "more", **known(tmp_path))


@pytest.mark.parametrize(
    ("method", "changes", "rounds", "reason"),
    [
        ("apple", {}, 4, "the share `until` of the rounds, so its first ones would have been others"),
        ("fedcac", {}, 4, "the share `until`"),
        ("finetune(fedlag)", {}, 4, "its warm-up is a tenth of the rounds"),
        ("fedavg", {"schedule": "cosine"}, 4, r"depends on their number \(schedule=cosine\)"),
        ("fedavg", {"eval_every": 3}, 4, "its last round, 2, was evaluated though eval_every=3"),
        ("fedavg", {}, 2, "it has 2; give a larger number"),
    ],
)
def test_what_would_have_begun_in_another_way_is_refused_and_left_alone(method, changes, rounds, reason, tmp_path):
    start(method, tmp_path / "r", rounds=2, **changes)
    before = (tmp_path / "r" / CONFIG).read_bytes()
    with pytest.raises(InputError, match=f"cannot be trained to {rounds} rounds: .*{reason}"):
        idiolect.resume(tmp_path / "r", rounds=rounds, **known(tmp_path))
    assert (tmp_path / "r" / CONFIG).read_bytes() == before
    assert idiolect.resume(tmp_path / "r", **known(tmp_path)).summary["rounds_done"] == 2


def test_a_process_that_ended_between_the_two_writes_is_made_good(tmp_path, monkeypatch):
    start("fedavg", tmp_path / "r", rounds=2)
    with monkeypatch.context() as patched:
        patched.setattr(
            "idiolect.runs.extending.write_config", lambda *_: (_ for _ in ()).throw(OSError(28, "no space"))
        )
        with pytest.raises(RunFolderError, match="cannot be written: no space"):
            idiolect.resume(tmp_path / "r", rounds=3, **known(tmp_path))
    with pytest.raises(RunFolderError, match="rounds: 3 there, 2 now"):
        idiolect.resume(tmp_path / "r", **known(tmp_path))
    assert idiolect.resume(tmp_path / "r", rounds=3, **known(tmp_path)).summary["rounds_done"] == 3


def test_edited_settings_are_not_extended(tmp_path):
    start("fedavg", tmp_path / "r", rounds=2)
    _, config = open_run(tmp_path / "r", **known(tmp_path))
    write_config(idiolect.runs.settings.dataclasses.replace(config, lr=0.2), tmp_path / "r" / CONFIG)
    with pytest.raises(RunFolderError, match=r"lr: 0.1 there, 0.2 now"):
        idiolect.resume(tmp_path / "r", rounds=3, **known(tmp_path))


def test_on_the_command_line(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ("--clients", "3", "--rounds", "1", "--model", "linear", "--quiet", "--engine", "loop")
    call("run", "--out", "r", *quick)
    code, out, _ = call("resume", "r", "--rounds", "2", "--quiet")
    assert (code, "2 of 2 rounds" in out or "results: r" in out) == (0, True)
    call("compare", "--methods", "local", "--seeds", "1", "--out", "c", *quick)
    code, _, err = call("resume", "c", "--rounds", "2")
    assert code == 2
    assert "holds a comparison" in err
