"""All engines agree with the loop; on one engine, workers, chunks of hand-out and client order change not a bit."""

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from idiolect import Federation, run
from idiolect.contract import Download, methods
from idiolect.core.errors import IdiolectError, InputError, ModelError
from idiolect.engines import Loop, Workers, engines
from idiolect.engines.client_evaluation import evaluate, evaluate_group
from idiolect.engines.linear_steps import is_plain
from idiolect.engines.processes import list_devices
from idiolect.engines.shared_memory import SharedMemory
from idiolect.engines.slots import first_server
from idiolect.engines.stackability import why_not_stackable
from idiolect.engines.stacking import group_clients, train_stack
from idiolect.engines.worker import place_plan
from idiolect.kernels.dense import find_dense
from idiolect.models import build
from idiolect.models.text import LstmModule
from idiolect.task.metrics import Metric
from idiolect.task.optimizers import SGD, Adam
from idiolect.task.task import Task
from idiolect.testing import play, require_equal, tiny_plan
from idiolect.testing.disturbances import WorkersHere


def images(count: int = 3) -> Federation:
    draw = torch.Generator().manual_seed(0)
    sizes = (21, 13, 8)
    pairs = [(torch.randn(n, 1, 28, 28, generator=draw), torch.randint(0, 10, (n,), generator=draw)) for n in sizes]
    return Federation.from_clients(pairs[:count], classes=10)


def conv_plan(**changes):
    data = images()
    plan = tiny_plan("fedavg", rounds=1, batch_size=8, lr=0.01)
    x, y = data.clients[0].split("train")
    return replace(plan, data=data, tasks=(Task(build("cnn4", data), (x[:2], y[:2]), classes=10),), **changes)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedper"])
def test_the_number_of_workers_changes_not_a_bit(method):
    one, two = (play(tiny_plan(method), lambda plan, n=n: Workers(plan, n)) for n in (1, 2))
    require_equal(one, two, "one worker and two")
    assert one.rows == two.rows


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_the_number_of_workers_changes_not_a_bit_of_stacks(method):
    one, two = (play(tiny_plan(method), lambda plan, n=n: Workers(plan, n, chunk=2)) for n in (1, 2))
    require_equal(one, two, "one worker and two")


@pytest.mark.parametrize("chunk", [0, 2])
def test_convolutions_agree_with_the_loop(chunk):
    require_equal(play(conv_plan()), play(conv_plan(), lambda plan: Workers(plan, chunk=chunk)), "workers", 1e-4)


@pytest.mark.parametrize("method", ["perfedavg", "pfedgate(split=structured)", "lgmix", "fedrep"])
def test_convolutions_of_many_methods_agree_with_the_loop(method):
    chosen = methods.build(method)
    require_equal(play(conv_plan(method=chosen)), play(conv_plan(method=chosen), WorkersHere), "workers", 1e-4)


def test_several_rounds_through_shared_memory_agree():
    """What a server keeps of uploads must survive the next round's use of the same memory."""
    require_equal(play(tiny_plan("fedlag(warmup=0)")), play(tiny_plan("fedlag(warmup=0)"), Workers), "workers", 1e-3)


def test_the_memory_of_workers_is_used_again_in_every_round():
    def pages(rounds):
        workers = Workers(plan := tiny_plan("fedavg", rounds=rounds, epochs=1), 1)
        play(plan, lambda _: workers)
        return os.fstat(workers._outboxes[0]._handle).st_blocks

    assert pages(12) == pages(1) > 0


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9, weight_decay=0.01), Adam()])
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedrep(head_epochs=1)", "local", "fedprox", "flayer", "lgmix"])
def test_gradients_of_dense_networks_written_out_equal_the_traced_ones(method, optimizer, monkeypatch):
    plan = tiny_plan(method, rounds=1, optimizer=optimizer)
    assert find_dense(plan.tasks[0]) is not None
    written = play(plan, lambda plan: WorkersHere(plan, 1, chunk=5))
    monkeypatch.setattr("idiolect.engines.stacking.find_dense", lambda task: None)
    traced = play(tiny_plan(method, rounds=1, optimizer=optimizer), lambda plan: WorkersHere(plan, 1, chunk=5))
    require_equal(written, traced, "written out", 1e-4)


def plain_phases(method: str, **changes) -> list[bool]:
    """Per phase of a method, whether all its steps are plain SGD."""
    plan = tiny_plan(method, **changes)
    ctx = plan.context(0, 0)
    return [is_plain(replace(ctx, phase=phase)) for phase in plan.method.phases(ctx)]


def test_plain_sgd_is_told_from_every_other_step():
    for method in ("fedavg", "fedper", "fedlag", "finetune", "flayer(layer_rates=false, acc_source=train)"):
        assert plain_phases(method)[0], method
    assert plain_phases("fedrep") == [True, True]
    assert plain_phases("ditto") == [True, False]
    for method in ("fedprox", "scaffold", "flayer", "fedlag(signal=last_grad)", "fedlag(flayer)", "finetune(fedprox)"):
        assert not any(plain_phases(method)), method
    for optimizer in (Adam(), SGD(clip=1.0), SGD(momentum=0.5), SGD(weight_decay=0.1)):
        assert plain_phases("fedavg", optimizer=optimizer) == [False]


def test_clients_of_all_sizes_share_a_stack_but_not_where_padding_would_show():
    plan = tiny_plan("fedavg")
    assert [len(group) for group in group_clients(plan, 0, dict.fromkeys(range(5)), Download({}))] == [5]
    normed = tiny_plan("fedavg", norm=True)
    assert [len(group) for group in group_clients(normed, 0, dict.fromkeys(range(5)), Download({}))] == [1] * 5


def test_what_cannot_be_traced_says_so_and_runs_on_workers(caplog):
    x, y = torch.randint(0, 9, (12, 5)), torch.randint(0, 9, (12, 5))
    characters = LstmModule(vocabulary=9, embedding=4, width=8, layers=1, dense=[], classes=9, every=True)
    result = run("fedavg", [(x, y), (x, y)], model=characters, rounds=1, engine="vector")
    assert result.complete
    assert "LSTM" in caplog.text
    dropout = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    task = Task(dropout, (torch.randn(2, 4), torch.tensor([0, 1])), classes=3)
    plan = tiny_plan("fedavg")
    assert "Dropout" in why_not_stackable(type(plan)(plan.method, (task,), plan.data, rounds=1))


def test_a_worker_that_dies_is_an_explained_error():
    plan = tiny_plan("fedavg")
    pool = Workers(plan, 1)
    server = first_server(plan.server(0))
    download = plan.method.download(plan.server(0), server, (0,))
    list(pool.train(0, {0: None}, download))
    os.kill(pool._processes[0].pid, signal.SIGKILL)
    with pytest.raises(IdiolectError, match="worker process ended unexpectedly"):
        list(pool.train(0, {0: None}, download))
    pool.close()


@pytest.mark.parametrize("engine", ["loop", "workers", "vector"])
def test_an_error_in_a_method_names_client_phase_and_step(engine):
    plan = tiny_plan("fedavg")

    def broken(outputs, y):
        raise ModelError("this loss is broken")

    plan.tasks[0].loss_fn = broken
    with pytest.raises(ModelError) as caught:
        play(plan, engines.build(engine).make)
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "broken" in text
    assert "client c" in text
    assert "phase train" in text


@pytest.mark.parametrize(
    ("changes", "where"), [({}, "evaluation"), ({"after_local": True}, "evaluation after training")]
)
@pytest.mark.parametrize("engine", ["loop", "workers(count=1)", "vector(count=1)"])
def test_an_error_in_a_metric_names_the_metric_and_the_client(engine, changes, where):
    """The third client has one class only."""
    plan = tiny_plan("fedavg", rounds=1, **changes)

    def picky(outputs, y):
        if len(y.unique()) == 1:
            raise ValueError("only one class present")
        return 0.5

    plan.tasks[0].metrics = {"accuracy": plan.tasks[0].metrics["accuracy"], "picky": Metric(picky)}
    with pytest.raises(ModelError, match="ValueError: only one class present") as caught:
        play(plan, engines.build(engine).make)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"while computing picky: {__file__}, line " in text
    assert f"client c2 (2), round 1, {where}\n" in f"{text}\n"
    assert "phase" not in text


def test_a_resumed_run_keeps_the_engine_it_chose(tmp_path):
    import idiolect

    run("fedavg", "digits", clients=3, rounds=1, out=tmp_path / "r", engine="workers(count=1)")
    assert idiolect.load(tmp_path / "r").summary["engine"] == "workers(count=1)"
    assert idiolect.resume(tmp_path / "r").summary["engine"] == "workers(count=1)"


def test_bf16_is_close_to_fp32():
    settings = {"clients": 5, "rounds": 5, "partition": "iid"}
    full, half = (run("fedavg", "digits", precision=p, **settings) for p in ("fp32", "bf16"))
    a, b = (each.summary["accuracy"]["last"]["weighted"] for each in (full, half))
    assert abs(a - b) < 0.05
    x = torch.rand(4, 1, 8, 8)
    assert not torch.equal(full.model(0)(x), half.model(0)(x))


def test_bf16_on_a_processor_without_it_comes_with_a_warning(monkeypatch, caplog):
    for supported, said in ((True, ""), (False, "this processor has no instructions for bf16")):
        monkeypatch.setattr(sys.modules["idiolect.runs.setup"], "has_bf16", lambda device, found=supported: found)
        caplog.clear()
        run("fedavg", "digits", precision="bf16", clients=3, rounds=1, engine="loop")
        assert caplog.text.count("bf16") == bool(said)
        assert said in caplog.text


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {}),
        ("fedprox", {}),
        ("fedper", {}),
        ("fedavg", {"norm": True, "norm_stats": "local"}),
        ("ditto", {}),
        ("finetune", {}),
    ],
)
def test_clients_that_never_trained_are_scored_in_a_group_as_one_by_one(method, changes):
    """Where they all predict with the shared model as it is, in common batches; not where they keep part of it, or
    where it is adapted to each."""
    plan = tiny_plan(method, **changes)
    server = first_server(plan.server(0))
    download = plan.method.download(plan.server(0), server, plan.data.seen)
    together = dict(evaluate_group(plan, 0, dict.fromkeys(plan.data.seen), download, unseen=False))
    for index in plan.data.seen:
        alone = evaluate(plan, index, 0, None, download.of(index), unseen=False)
        assert [replace(score, value=0.0) for score in together[index]] == [replace(s, value=0.0) for s in alone]
        assert [s.value for s in together[index]] == pytest.approx([s.value for s in alone], rel=1e-5)


def test_shared_memory_holds_any_dtype_and_shape():
    memory = SharedMemory()
    slots = {
        "a": {"x": torch.ones(3, 2), "n": torch.tensor(7), "m": torch.tensor([True, False])},
        "b": {},
        "c": {"e": torch.zeros(0, 2)},
    }
    again = memory.read(memory.write(slots))
    assert list(again) == ["a", "b", "c"]
    for slot, leaves in slots.items():
        for name, leaf in leaves.items():
            assert torch.equal(again[slot][name], leaf)


def test_stacks_give_one_outcome_per_client():
    plan = tiny_plan("fedavg", after_local=True)
    server = first_server(plan.server(0))
    download = plan.method.download(plan.server(0), server, plan.data.seen)
    found = dict(train_stack(plan, 0, dict.fromkeys(plan.data.seen), download, 2))
    expected = dict(Loop(plan).train(0, dict.fromkeys(plan.data.seen), download))
    assert found.keys() == expected.keys()
    for index, outcome in found.items():
        assert outcome.steps == expected[index].steps
        assert outcome.loss == pytest.approx(expected[index].loss, rel=1e-4)
        assert [s.metric for s in outcome.scores] == [s.metric for s in expected[index].scores]


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    work = partial(run, "fedavg", "digits", clients=4, rounds=100000, engine="workers(count=2)", out=tmp_path / "r")
    parent = multiprocessing.get_context("forkserver").Process(target=work)
    parent.start()
    while len(children := children_of(parent.pid)) < 2:
        time.sleep(0.1)
    parent.kill()
    parent.join()
    deadline = time.time() + 30
    while any(alive(pid) for pid in children) and time.time() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in children)


def children_of(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in listing.read_text().split()] if listing.exists() else []


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("chunk", [0, 5])
def test_workers_that_are_spawned_share_memory_too(chunk, monkeypatch):
    """As they are where a GPU is present, whose state cannot be inherited; each has a device of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("idiolect.engines.processes.list_devices", lambda device: ["cpu:0"])
    plan = tiny_plan("ditto", rounds=1, epochs=1)
    spawned = play(plan, lambda plan: Workers(plan, 1, chunk=chunk))
    require_equal(spawned, play(plan), "spawned", 1e-4)


def test_a_stack_draws_the_noise_that_each_client_draws(caplog):
    """FedCP's gates take noise for every sample; clients of all sizes share a stack, whose last batches are smaller."""
    plan = tiny_plan("fedcp", rounds=1, epochs=1)
    require_equal(play(plan, lambda plan: Workers(plan, 1, chunk=5)), play(plan), "noise", 1e-4)
    assert not caplog.messages, "none is run one by one"


def test_each_process_has_a_device_of_its_own_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert list_devices("cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    plan = tiny_plan("ditto")
    assert Workers(replace(plan, training=replace(plan.training, device="cuda"))).count == 3
    placed = place_plan(plan, "cpu:0")
    assert (placed.device, plan.device) == ("cpu:0", "cpu")
    assert place_plan(plan, "cpu") is plan


def test_actors_without_a_gpu_refuse_tensors_that_live_on_one():
    plan = tiny_plan("ditto")
    with pytest.raises(InputError, match=r"device=cuda needs GPUs for the actors.*engine='ray\(gpus=1\)'"):
        engines.build("ray").make(replace(plan, training=replace(plan.training, device="cuda")))
