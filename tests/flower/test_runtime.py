"""The real thing: a SuperLink with TLS behind the gateway and two authenticated SuperNodes, each in its own process."""

import shutil
import ssl

import pytest
import torch

import idiolect
from idiolect.flower.personal import load_personal_model
from idiolect.flower.supernode import hash_app
from idiolect.flower.testbed import Testbed, write_named_app
from idiolect.runs.store import Store

SETTINGS = {"data": "digits", "clients": 2, "rounds": 2, "eval_every": 2, "method": "ditto", "lr": 0.1, "seed": 1}


def ask_as_a_stranger(bed, address):
    """How a server answers who has nothing but the public certificate, and asks for the runs and for a task."""
    httpx = pytest.importorskip("httpx")
    verify = ssl.create_default_context(cafile=bed.folder / "ca.crt")
    headers = {"content-type": "application/protobuf"}
    with httpx.Client(base_url=f"https://{address}", verify=verify, headers=headers, timeout=60.0) as stranger:
        return [stranger.post(path).status_code for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task")]


@pytest.mark.slow
def test_two_nodes_for_two_rounds_equal_the_loop(tmp_path):
    pytest.importorskip("flwr.app", reason="Flower is not installed")
    for tool in ("openssl", "ssh-keygen"):
        if shutil.which(tool) is None:
            pytest.skip(f"the program {tool} is not installed")
    app = write_named_app(tmp_path / "app", SETTINGS | {"federation": "two", "wait": 600.0})
    with Testbed(tmp_path / "bed") as bed:
        for index in range(2):
            bed.start_node(index, agreed=hash_app(app))
        assert ask_as_a_stranger(bed, bed.address) == [200, 200], "which is why nobody may reach the SuperLink"
        assert ask_as_a_stranger(bed, bed.gateway) == [404, 404]
        bed.start_run(app)
        log = bed.wait_for("two", "complete after 2 rounds", 600)
        bed.start_run(app, {"federation": "other"})
        refused = bed.wait_for("other", "was not admitted", 300)
    assert "this client has agreed to the settings in the app, but the run changes federation" in refused
    assert not (bed.home / "other" / "client-0").exists(), "nothing of the app was executed"
    assert "WARNING" not in log
    loop = idiolect.run(engine="loop", **SETTINGS)
    server = Store(bed.home / "two" / "server" / "state.sqlite", write=False)
    for name, leaf in server.server()["params"].items():
        assert torch.allclose(leaf, loop.store.server()["params"][name], atol=1e-6)
    for fact in ("bytes_up", "bytes_down", "bytes_eval", "steps"):
        assert server.fact(fact) == loop.store.fact(fact)
    for index in range(2):
        personal = load_personal_model(bed.home / "two" / f"client-{index}")
        for name, leaf in personal.personal["params"].items():
            assert torch.allclose(leaf, loop.personal_slots(index)["params"][name], atol=1e-6)
    assert server.clients([0])[0].keys() == {"receipt"}, "the clients' states are with the clients"
