"""pFedHN: a hyper-network on the server generates every client's model."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Task, run
from idiolect.contract import methods
from idiolect.core import codec, tree
from idiolect.core.errors import ModelError
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import aggregate, first_server
from idiolect.methods.pfedhn import EMBEDDING, MOMENTUM, NET
from idiolect.testing import check_bad_options, check_method, check_wrappers_refused, play, play_params, tiny_plan
from idiolect.testing.scalar import download_of, make_upload, personal_model, scalar, scalar_task, train_client


def start(plan):
    """The server's context and slots before the first round."""
    return plan.server(0), first_server(plan.server(0))


def trained(plan, server, index, by=0.1):
    """What a client sends that moved all of its model by the same amount."""
    sent = download_of(plan, index, server=server)["params"]
    return make_upload({"params": tree.map(lambda leaf: leaf + by, sent)})


# -- the hyper-network -----------------------------------------------------------------------------------


def test_embeddings_have_1_plus_n_over_4_numbers_and_a_linear_map_generates_each_tensor():
    """Five clients: 1 + 5 // 4 = 2. Four maps of 100 units (the first, and three hidden), then one per tensor."""
    plan = tiny_plan("pfedhn")
    _, server = start(plan)
    assert server[EMBEDDING]["v"].shape == (5, 2)
    assert server[NET]["mlp0.weight"].shape == (100, 2)
    assert server[NET]["mlp3.weight"].shape == (100, 100)
    assert "mlp4.weight" not in server[NET]
    assert server[NET]["2.weight weight"].shape == (30, 100)
    assert start(tiny_plan("pfedhn(embedding=7)"))[1][EMBEDDING]["v"].shape == (5, 7)


def test_it_computes_what_the_same_network_of_modules_computes():
    plan = tiny_plan("pfedhn(hidden=8, depth=2)")
    ctx, server = start(plan)
    net = server[NET]
    mlp = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    mlp.load_state_dict({f"{2 * i}.{p}": net[f"mlp{i}.{p}"] for i in range(3) for p in ("weight", "bias")})
    hidden = mlp(server[EMBEDDING]["v"][1])
    model = plan.method.generate(ctx, net, server[EMBEDDING]["v"][1])
    for name, leaf in plan.tasks[0].net.params.items():
        assert model[name].shape == leaf.shape
        wanted = net[f"{name} weight"] @ hidden + net[f"{name} bias"]
        assert torch.allclose(model[name].flatten(), wanted, atol=1e-6)


def test_a_parameter_that_is_one_number_is_generated_too():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.scale * super().forward(x)

    plan = tiny_plan("pfedhn")
    x, y = plan.split(0, "train")
    plan = replace(plan, tasks=(Task(Scaled(), (x[:2], y[:2]), classes=3),))
    ctx, server = start(plan)
    assert plan.method.generate(ctx, server[NET], server[EMBEDDING]["v"][0])["scale"].shape == ()
    assert plan.method.generate(ctx, server[NET], server[EMBEDDING]["v"][:2])["scale"].shape == (2,)


def test_clients_get_models_of_their_own_and_nothing_of_the_hyper_network():
    plan = tiny_plan("pfedhn")
    ctx, server = start(plan)
    download = plan.method.download(ctx, server, (0, 1))
    assert download.of(0).keys() == {"params", "buffers"}
    assert not torch.equal(download.of(0)["params"]["0.weight"], download.of(1)["params"]["0.weight"])
    assert codec.size(download.of(0)) == 4 * tree.size(plan.tasks[0].net.params)


# -- the server's step -----------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """theta = W v = 2 x 3 = 6, trained to 7: W moves to 2 + 0.1 x 3 = 2.3 and v to 3 + 0.1 x 2 = 3.2, theta to 7.36."""
    plan = tiny_plan("pfedhn(embedding=1, hidden=1, depth=0, lr=0.1, momentum=0, weight_decay=0)")
    plan = replace(plan, tasks=(scalar_task(1.0, torch.ones(2, 1), torch.ones(2, 1)),))
    ctx, server = start(plan)
    one, zero = torch.ones(1, 1), torch.zeros(1)
    net = {"mlp0.weight": one, "mlp0.bias": zero, "weight weight": 2 * one, "weight bias": zero}
    server = {**server, NET: net, EMBEDDING: {"v": torch.full((5, 1), 3.0)}}
    assert download_of(plan, server=server)["params"]["weight"].item() == 6.0
    after = aggregate(ctx, server, {0: make_upload({"params": scalar(7.0)})})
    # The first map is part of the hyper-network, too, and moves by W x v = 6 times the learning rate; here it stays 1.
    after[NET]["mlp0.weight"], after[NET]["mlp0.bias"], after[NET]["weight bias"] = one, zero, zero
    assert after[NET]["weight weight"].item() == pytest.approx(2.3)
    assert after[EMBEDDING]["v"].flatten().tolist() == pytest.approx([3.2, 3, 3, 3, 3])
    assert download_of(plan, server=after)["params"]["weight"].item() == pytest.approx(7.36)


def test_the_gradient_of_hyper_network_and_embedding_by_finite_differences():
    """It is that of 1/2 |h(v_i) - trained|^2, whose gradient in the model is minus the client's change."""
    plan = tiny_plan("pfedhn(hidden=6, depth=1)")
    ctx, server = start(plan)
    held = {n: leaf.double() for n, leaf in {**server[NET], **server[EMBEDDING]}.items()}
    goal = tree.map(lambda leaf: leaf.double() + 0.3, trained(plan, server, 1).slots["params"])

    def value(net):
        return (
            float(sum((leaf - goal[n]).pow(2).sum() for n, leaf in plan.method.generate(ctx, net, net["v"][1]).items()))
            / 2
        )

    grads = plan.method.gradient(ctx, held, {1: goal})
    for name, at in (
        ("v", (1, 0)),
        ("v", (0, 0)),
        ("mlp0.weight", (2, 1)),
        ("mlp1.bias", (3,)),
        ("4.bias weight", (1, 4)),
    ):
        ends = []
        for sign in (1, -1):
            moved = {**held, name: held[name].clone()}
            moved[name][at] += sign * 1e-6
            ends.append(value(moved))
        assert grads[name][at].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_a_step_moves_the_generated_model_towards_the_trained_one():
    """The change enters with its sign: the server's gradient is the sent model minus the trained one."""
    plan = tiny_plan("pfedhn(momentum=0, weight_decay=0)")
    ctx, server = start(plan)
    sent = trained(plan, server, 2)
    after = aggregate(ctx, server, {2: sent})
    before, now = (download_of(plan, 2, server=s)["params"] for s in (server, after))
    goal = sent.slots["params"]
    assert tree.norm(tree.sub(now, goal)) < tree.norm(tree.sub(before, goal))


def test_the_server_has_momentum_weight_decay_and_a_largest_gradient():
    """A second round without any change still moves by what the momentum kept of the first, and by the decay."""
    _, server = start(tiny_plan("pfedhn"))
    moved = {}
    for options in ("", "momentum=0", "weight_decay=0", "clip=0.001"):
        plan = tiny_plan(f"pfedhn({options})")
        ctx, _ = start(plan)
        first = {s: each for s, each in server.items() if s != MOMENTUM or plan.method.momentum}
        after = aggregate(ctx, first, {0: trained(plan, server, 0)})
        moved[options] = after[NET]["mlp0.bias"]
        assert (MOMENTUM in after) == (options != "momentum=0")
    assert torch.equal(moved[""], moved["momentum=0"])
    assert not torch.equal(moved[""], moved["weight_decay=0"])
    assert not torch.equal(moved[""], moved["clip=0.001"])
    plan = tiny_plan("pfedhn")
    ctx, _ = start(plan)
    once = aggregate(ctx, server, {0: trained(plan, server, 0)})
    again = aggregate(ctx, once, {0: trained(plan, once, 0, by=0.0)})
    assert torch.allclose(again[MOMENTUM]["v"][0], 0.9 * once[MOMENTUM]["v"][0] + 1e-3 * once[EMBEDDING]["v"][0])


def test_several_participants_make_one_step_with_the_sum_of_their_terms():
    """theta = W v with W = 2 and v = (3, 1): models 6 and 2, trained to 7 and 4. The terms of W are 3 x 1 + 1 x 2 = 5,
    those of v are 2 x 1 and 2 x 2, all at the values that were sent: W = 2 + 0.1 x 5, v = (3.2, 1.4)."""
    plan = tiny_plan("pfedhn(embedding=1, hidden=1, depth=0, lr=0.1, momentum=0, weight_decay=0)")
    plan = replace(plan, tasks=(scalar_task(1.0, torch.ones(2, 1), torch.ones(2, 1)),))
    ctx, server = start(plan)
    one, zero = torch.ones(1, 1), torch.zeros(1)
    net = {"mlp0.weight": one, "mlp0.bias": zero, "weight weight": 2 * one, "weight bias": zero}
    server = {**server, NET: net, EMBEDDING: {"v": torch.tensor([[3.0], [1.0], [5.0], [5.0], [5.0]])}}
    after = aggregate(ctx, server, {i: make_upload({"params": scalar(w)}) for i, w in enumerate((7.0, 4.0))})
    assert after[NET]["weight weight"].item() == pytest.approx(2.5)
    assert after[EMBEDDING]["v"].flatten().tolist() == pytest.approx([3.2, 1.4, 5, 5, 5])


def test_clients_that_were_away_change_with_the_hyper_network():
    plan = tiny_plan("pfedhn")
    ctx, server = start(plan)
    after = aggregate(ctx, server, {0: trained(plan, server, 0)})
    before, now = (personal_model(plan, s, index=3, round=1)[1] for s in (server, after))
    assert not torch.equal(before["params"]["0.weight"], now["params"]["0.weight"])


# -- private heads, unseen clients -----------------------------------------------------------------------


def test_private_layers_are_neither_generated_nor_sent():
    plan = tiny_plan("pfedhn(layers=1)")
    _, server = start(plan)
    assert not any(name.startswith("4.") for name in server[NET])
    download = download_of(plan, server=server)
    outcome = train_client(plan)
    assert not {"4.weight", "4.bias"} & (download["params"].keys() | outcome.upload.slots["params"].keys())
    found = play_params(plan)
    assert not torch.equal(found[0]["4.weight"], found[1]["4.weight"])


@pytest.mark.parametrize(("layers", "moves"), [(0, set()), (1, {"4.weight", "4.bias"})])
def test_an_unseen_client_trains_its_embedding_and_its_private_head_only(layers, moves):
    plan = tiny_plan(f"pfedhn(layers={layers})", unseen=1)
    _, server = start(plan)
    client, first = personal_model(plan, server, index=5, round=2)
    assert torch.allclose(first[EMBEDDING]["v"], server[EMBEDDING]["v"].mean(0))
    tuned = adapt_model(plan, client, first, unseen=True)
    assert not torch.equal(tuned[EMBEDDING]["v"], first[EMBEDDING]["v"])
    assert all(torch.equal(leaf, server[NET][n]) for n, leaf in tuned[NET].items())
    model = plan.method.generate(client, tuned[NET], tuned[EMBEDDING]["v"])
    assert all(torch.equal(tuned["params"][n], leaf) for n, leaf in model.items())
    assert tuned["params"].keys() - model.keys() == moves
    assert all(not torch.equal(tuned["params"][n], first["params"][n]) for n in moves)


def test_fine_tuning_trains_the_generated_model():
    result = run("finetune(pfedhn)", clients=8, rounds=2, seed=0, unseen=0.25, engine="loop")
    assert result.model(0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    check_method("finetune(pfedhn(hidden=8))", ["momentum", "unseen_clients"])


# -- options ---------------------------------------------------------------------------------------------


def test_models_are_personal_by_default():
    found = play_params(tiny_plan("pfedhn"))
    assert not torch.allclose(found[0]["0.weight"], found[1]["0.weight"])
    ends = play(tiny_plan("pfedhn")).server[NET]["mlp0.bias"]
    assert not torch.equal(ends, start(tiny_plan("pfedhn"))[1][NET]["mlp0.bias"])


def test_bad_options_are_refused():
    check_bad_options("pfedhn", "lr=0", "momentum=1", "hidden=0", "embedding=0", "clip=0", "weight_decay=-1")


def test_more_private_layers_than_layers_is_an_error_before_anything_runs():
    with pytest.raises(ModelError, match="3 layers"):
        methods.build("pfedhn(layers=4)").check(tiny_plan("fedavg").tasks[0])


def test_wrappers_that_need_one_model_are_refused():
    check_wrappers_refused("pfedhn", "no one model")


@pytest.mark.parametrize("expression", ["pfedhn(hidden=8)", "pfedhn(layers=1, momentum=0, clip=null)"])
def test_it_keeps_the_contract(expression):
    check_method(expression, ["messages", "pure", "through_bytes"])
