"""How declared slots travel: where they start, what a client works with, what it keeps and sends, what is added up."""

from dataclasses import dataclass, replace

import pytest
import torch

from idiolect.contract import Method, Slot, Upload, mask_of, private, scratch, shared, zero
from idiolect.core import tree
from idiolect.engines.slots import aggregate, first_client, first_server, gather, keep_and_send, sent_names
from idiolect.testing import tiny_plan

PRIVATE = frozenset({"5.weight", "5.bias", "1.running_mean"})


@dataclass(frozen=True)
class AllKinds(Method):
    """A method with a slot of every kind."""

    name = "all kinds"

    @property
    def slots(self):
        return {
            **super().slots,
            "told": Slot("server", zero("number"), down=True),
            "secret": Slot("server", zero("number")),
            "own": private(holds="model"),
            "note": private(zero("number")),
            "tally": scratch(zero("number")),
            "word": scratch(zero("number"), up="sum", weigh="uniform"),
            "letter": scratch(zero("number"), up="each"),
        }

    def private_names(self, task):
        return PRIVATE & {*task.net.params, *task.net.buffers}


@pytest.fixture
def plan():
    return tiny_plan(AllKinds(), norm=True)


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(leaf, b[name]) for name, leaf in a.items())


def test_the_server_starts_with_its_slots(plan):
    server = first_server(plan.server(0))
    assert set(server) == {"params", "buffers", "told", "secret"}
    assert equal(server["params"], plan.tasks[0].initial["params"])


def test_a_client_starts_with_its_slots_and_the_private_part_of_shared_models(plan):
    client = first_client(plan.context(0, 0))
    assert set(client) == {"private", "own", "own.buffers", "note"}
    assert set(client["private"]) == PRIVATE


def test_work_is_what_a_client_keeps_what_it_gets_and_for_training_what_is_made_anew(plan):
    ctx, server = plan.context(0, 0), first_server(plan.server(0))
    download = plan.method.download(plan.server(0), server, (0,)).of(0)
    assert set(download) == {"params", "buffers", "told"}
    assert not PRIVATE & {*download["params"], *download["buffers"]}
    client = first_client(ctx)
    client["private"] = tree.map(lambda leaf: leaf + 1, client["private"])
    kept = {"params", "buffers", "told", "own", "own.buffers", "note"}
    work = gather(ctx, client, download)
    assert set(work) == kept | {"tally", "word", "letter"}
    assert set(gather(ctx, client, download, training=False)) == kept
    for slot in ("params", "buffers"):
        assert list(work[slot]) == list(ctx.initial[slot])
        for name, leaf in work[slot].items():
            assert torch.equal(leaf, client["private"][name] if name in PRIVATE else download[slot][name])


def test_what_is_declared_is_kept_and_sent_and_nothing_else(plan):
    ctx = plan.context(0, 0)
    client = first_client(ctx)
    work = gather(ctx, client, plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0))
    work = {slot: tree.map(lambda leaf: leaf + 1, leaves) for slot, leaves in work.items()}
    after, upload = keep_and_send(ctx, client, {**work, "undeclared": {}})
    assert set(after) == set(client)
    assert equal(after["own"], work["own"])
    assert all(torch.equal(leaf, {**work["params"], **work["buffers"]}[n]) for n, leaf in after["private"].items())
    assert set(upload.slots) == {"params", "buffers", "word", "letter", "weight"} == set(sent_names(plan.method))
    assert not PRIVATE & {*upload.slots["params"], *upload.slots["buffers"]}
    assert upload.weight == ctx.samples


def test_a_slot_that_finish_leaves_out_is_neither_kept_nor_sent(plan):
    ctx = plan.context(0, 0)
    client = first_client(ctx)
    after, upload = keep_and_send(ctx, client, {"word": {"number": torch.ones(())}})
    assert after == client
    assert set(upload.slots) - {"weight"} == {"word"}
    assert keep_and_send(ctx, client, {})[1].slots == {}


def test_the_number_of_samples_is_sent_only_where_the_run_weighs_something_by_it():
    plan = tiny_plan(Weighed())
    ctx = plan.context(0, 0)
    _, upload = keep_and_send(ctx, {}, gather(ctx, {}, first_server(plan.server(0))))
    assert set(upload.slots) == {"trust", "mean", "table"} == set(sent_names(plan.method))


def test_the_private_part_that_finish_leaves_out_stays_as_it_was(plan):
    ctx = plan.context(0, 0)
    client = first_client(ctx)
    after, _ = keep_and_send(ctx, client, {"params": tree.map(lambda leaf: leaf + 1, ctx.initial["params"])})
    assert set(after["private"]) == PRIVATE
    assert torch.equal(after["private"]["5.bias"], client["private"]["5.bias"] + 1)
    assert torch.equal(after["private"]["1.running_mean"], client["private"]["1.running_mean"])


def test_a_mask_in_work_is_the_mask_of_the_upload(plan):
    ctx = plan.context(0, 0)
    mask = {"0.bias": torch.arange(6) < 2}
    _, upload = keep_and_send(ctx, {}, {**ctx.initial, mask_of("params"): mask})
    assert upload.masks == {"params": mask}


@dataclass(frozen=True)
class Watching(AllKinds):
    """Keeps what its `aggregate` was given."""

    def aggregate(self, ctx, server, sums, each):
        return {"sums": sums, "each": each}


def test_the_server_sees_sums_of_all_and_single_uploads_only_of_slots_that_say_so():
    plan = tiny_plan(Watching())
    number = {"number": torch.tensor(4.0)}
    uploads = {
        i: Upload({"params": {"0.bias": torch.full((6,), float(i))}, "word": number, "letter": number,
                   "weight": {"samples": torch.tensor(samples)}})
        for i, samples in ((1, 1.0), (3, 3.0))
    }  # fmt: skip
    seen = aggregate(plan.server(0), {}, uploads)
    assert set(seen["sums"]) == {"params", "word", "letter"}
    assert seen["sums"]["params"].mean()["0.bias"].tolist() == [2.5] * 6  # (1 * 1 + 3 * 3) / 4
    assert (seen["sums"]["word"]._everybody, seen["sums"]["params"]._everybody) == (2.0, 4.0)
    assert {i: set(upload.slots) - {"weight"} for i, upload in seen["each"].items()} == {1: {"letter"}, 3: {"letter"}}
    uniform = replace(plan, training=replace(plan.training, weighting="uniform"))
    assert aggregate(uniform.server(0), {}, uploads)["sums"]["params"].mean()["0.bias"].tolist() == [2.0] * 6


@dataclass(frozen=True)
class Weighed(Method):
    """A slot whose clients count by a number that they send, and one whose rows do."""

    name = "weighed"

    @property
    def slots(self):
        return {
            "trust": scratch(zero("in"), up="sum", weigh="uniform"),
            "mean": shared(zero("row"), weigh="trust/in"),
            "table": shared(zero("row"), weigh="table/count"),
        }


def test_a_leaf_that_is_sent_weighs_its_client_or_the_rows():
    plan = tiny_plan(Weighed())
    counts = {0: [1.0, 0.0], 1: [3.0, 0.0]}
    uploads = {
        i: Upload({"trust": {"in": torch.tensor(trust)}, "mean": {"row": torch.tensor([value, value])},
                   "table": {"row": torch.tensor([value, value]), "count": torch.tensor(counts[i])}})
        for i, trust, value in ((0, 3.0, 4.0), (1, 1.0, 8.0))
    }  # fmt: skip
    server = {"mean": {"row": torch.zeros(2)}, "table": {"row": torch.full((2,), 9.0), "count": torch.zeros(2)}}
    after = aggregate(plan.server(0), server, uploads)
    assert after["mean"]["row"].tolist() == [5.0, 5.0]  # (3 * 4 + 1 * 8) / 4
    assert after["table"]["row"].tolist() == [7.0, 9.0]  # (1 * 4 + 3 * 8) / 4; nobody has the second class
