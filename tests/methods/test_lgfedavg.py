"""LG-FedAvg: private bodies under a shared head, optionally after rounds in which all is shared."""

import pytest
import torch

from idiolect.contract import methods
from idiolect.core import codec
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines import Loop
from idiolect.engines.slots import aggregate, first_client, first_server, keep_and_send
from idiolect.methods.lgfedavg import BODY, PARTED
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.testing import play, play_params, require_stacking_agrees, tiny_plan
from idiolect.testing.scalar import download_of, personal_model, train_client

HEAD = {"4.weight", "4.bias"}


def test_the_head_is_common_and_the_bodies_differ():
    own = play_params(tiny_plan("lgfedavg"))
    for name in own[0]:
        assert torch.equal(own[0][name], own[1][name]) == (name in HEAD)


def test_the_body_never_leaves_a_client_and_costs_no_bytes():
    plan = tiny_plan("lgfedavg")
    download, outcome = download_of(plan), train_client(plan)
    assert set(download["params"]) == set(outcome.upload.slots["params"]) == HEAD
    assert codec.size(download) == 4 * (5 * 3 + 3)


def test_normalisation_goes_with_the_layer_before_it():
    task = tiny_plan("fedavg", norm=True).tasks[0]
    assert methods.build("lgfedavg").private_names(task) >= {"1.weight", "1.running_mean", "3.weight"}
    assert methods.build("lgfedavg(layers=2)").private_names(task) >= {"1.weight", "1.running_mean", "0.bias"}


def test_all_layers_shared_is_fedavg_and_none_is_local():
    for method, other in (("lgfedavg(layers=3)", "fedavg"), ("lgfedavg(layers=0)", "local")):
        own, plain = play_params(tiny_plan(method)), play_params(tiny_plan(other))
        assert all(torch.equal(leaf, plain[i][n]) for i, model in own.items() for n, leaf in model.items())


def test_the_default_acts():
    own, plain, alone = (play_params(tiny_plan(each)) for each in ("lgfedavg", "fedavg", "local"))
    assert not torch.equal(own[0]["0.weight"], plain[0]["0.weight"])
    assert not torch.equal(own[0]["4.weight"], alone[0]["4.weight"])


def test_the_hand_worked_example():
    """Equal clients train heads to 2 and to 4 and bodies to 5 and to 7: both then hold head 3, and bodies 5 and 7."""
    plan = tiny_plan("lgfedavg")
    ctx, states, uploads = plan.context(0, 0), {}, {}
    for i, (head, body) in enumerate([(2.0, 5.0), (4.0, 7.0)]):
        params = {n: torch.full_like(x, head if n in HEAD else body) for n, x in ctx.initial["params"].items()}
        states[i], uploads[i] = keep_and_send(ctx, first_client(ctx), {"params": params, "buffers": {}})
    server = aggregate(plan.server(0), first_server(plan.server(0)), uploads)
    for i, body in enumerate([5.0, 7.0]):
        model = personal_model(plan, server, states[i])[1]["params"]
        assert (model["4.weight"].unique().item(), model["0.weight"].unique().item()) == (3.0, body)


# -- pre-training --------------------------------------------------------------------------------------


def test_while_it_pretrains_it_is_fedavg_to_the_bit():
    own, plain = play(tiny_plan("lgfedavg(pretrain=3)")).server, play(tiny_plan("fedavg")).server["params"]
    whole = {**{f"body {n}": own["params"][n] for n in HEAD}, **own[BODY]}
    assert all(torch.equal(leaf, whole[f"body {n}"]) for n, leaf in plain.items())


def test_bodies_part_from_where_pretraining_ended():
    """After the last round of pre-training nobody has a body of its own; a round later those who trained do, and the
    server's body stays what it was."""
    plan = tiny_plan("lgfedavg(pretrain=2)", rounds=3, participation=0.4)
    after, plain = play(plan), play(tiny_plan("fedavg", rounds=2, participation=0.4))
    body = plain.server["params"]["0.weight"]
    assert torch.equal(after.server[BODY]["body 0.weight"], body)
    parted = {i for i in plan.data.seen if str(i) in after.server[PARTED]}
    assert parted == set(plan.participants(2))
    for i, model in play_params(plan).items():
        assert torch.equal(model["0.weight"], body) == (i not in parted)
        assert torch.equal(model["4.weight"], after.server["params"]["4.weight"])


def test_a_body_is_sent_until_a_client_has_its_own():
    plan = tiny_plan("lgfedavg(pretrain=1)", rounds=2, participation=0.4)
    store = Store(None)
    RoundLoop(plan, Loop(plan), store).run()
    download = plan.method.download(plan.server(2), store.server(), plan.data.seen)
    parted = set(plan.participants(1))
    assert 0 < len(parted) < 5
    for i in plan.data.seen:
        assert set(download.of(i)["params"]) == HEAD
        assert (BODY not in download.of(i)) == (i in parted)


def test_local_statistics_stay_local_while_it_pretrains():
    plan = tiny_plan("lgfedavg(pretrain=1)", norm=True, norm_stats="local")
    download, outcome = download_of(plan), train_client(plan)
    for message in (download, outcome.upload.slots):
        assert message["buffers"] == {}
        assert message[BODY].keys() == {f"body {n}" for n in set(plan.tasks[0].names) - plan.tasks[0].head(1)}


def test_engines_agree_when_some_have_a_body_and_some_have_not():
    require_stacking_agrees(tiny_plan("lgfedavg(pretrain=1)", participation=0.6), relative=1e-3)


# -- the rest ------------------------------------------------------------------------------------------


def test_an_unseen_client_trains_its_body_under_the_shared_head():
    plan = tiny_plan("lgfedavg", unseen=1)
    (phase,) = plan.method.onboard(plan.context(5, 0))
    assert phase.part == set(plan.tasks[0].names) - HEAD


def test_an_unseen_client_gets_the_pretrained_body():
    plan = tiny_plan("lgfedavg(pretrain=1)", unseen=1)
    server = play(plan).server
    _, model = personal_model(plan, server, index=5, round=2)
    assert torch.equal(model["params"]["0.weight"], server[BODY]["body 0.weight"])
    assert not torch.equal(model["params"]["0.weight"], plan.tasks[0].net.params["0.weight"])


@pytest.mark.parametrize(
    "outer", ["fedlag({}, warmup=0, k=1)", "flayer({})", "flayer({}, masking=false)", "finetune({})"]
)
@pytest.mark.parametrize("inner", ["lgfedavg(layers=2)", "lgfedavg(layers=2, pretrain=1)"])
def test_wrappers_wrap_it(outer, inner):
    own = play_params(tiny_plan(outer.format(inner)))
    assert not torch.equal(own[0]["0.weight"], own[1]["0.weight"])


def test_bad_options_are_refused():
    with pytest.raises(OptionError, match="layers"):
        methods.build("lgfedavg(layers=-1)")
    with pytest.raises(OptionError, match="shares nothing afterwards"):
        methods.build("lgfedavg(layers=0, pretrain=2)")
    with pytest.raises(ModelError, match="3 layers"):
        tiny_plan("lgfedavg(layers=4)")
