"""The real thing: a SuperLink with TLS and two authenticated SuperNodes, each in its own process."""

import shutil

import pytest
import torch

import idiolect
from idiolect.flower.personal import load_personal_model
from idiolect.flower.testbed import Testbed, write_named_app
from idiolect.runs.store import Store

SETTINGS = {"data": "digits", "clients": 2, "rounds": 2, "eval_every": 2, "method": "ditto", "lr": 0.1, "seed": 1}


@pytest.mark.slow
def test_two_nodes_for_two_rounds_equal_the_loop(tmp_path):
    pytest.importorskip("flwr.app", reason="Flower is not installed")
    for tool in ("openssl", "ssh-keygen"):
        if shutil.which(tool) is None:
            pytest.skip(f"the program {tool} is not installed")
    app = write_named_app(tmp_path / "app", SETTINGS | {"federation": "two", "wait": 600.0})
    with Testbed(tmp_path / "bed") as bed:
        for index in range(2):
            bed.start_node(index)
        bed.start_run(app)
        log = bed.wait_for("two", "complete after 2 rounds", 600)
    assert "WARNING" not in log
    loop = idiolect.run(engine="loop", **SETTINGS)
    server = Store(bed.home / "two" / "server" / "state.sqlite", create=False)
    for name, leaf in server.server()["params"].items():
        assert torch.allclose(leaf, loop.store.server()["params"][name], atol=1e-6)
    for fact in ("bytes_up", "bytes_down", "bytes_eval", "steps"):
        assert server.fact(fact) == loop.store.fact(fact)
    for index in range(2):
        personal = load_personal_model(bed.home / "two" / f"client-{index}")
        for name, leaf in personal.view["params"].items():
            assert torch.allclose(leaf, loop.view(index)["params"][name], atol=1e-6)
    assert server.clients([0])[0].keys() == {"receipt"}, "the clients' states are with the clients"
