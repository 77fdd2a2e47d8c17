"""A ServerApp does not start where strangers could take the federation over; Flower's own SuperLink answers here, with
nothing behind it that would execute a run."""

import threading
import time
from contextlib import contextmanager

import pytest

from idiolect.core.errors import InputError
from idiolect.flower import exposure
from idiolect.flower.exposure import SuperLink, find_exposure, read_superlink, require_closed

pytest.importorskip("flwr.app", reason="Flower is not installed")
uvicorn = pytest.importorskip("uvicorn")


class Grid:
    """What the ServerApp knows about its SuperLink."""

    def __init__(self, address, insecure=True, certificate=None):
        self._addr, self._insecure, self._cert = address, insecure, certificate


@contextmanager
def serving(host, app=None, node_auth=False):
    """A SuperLink without TLS; its port."""
    from flwr.superlink.main import create_app

    if app is None:
        app = create_app()
        app.state.enable_supernode_auth = node_auth
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def test_a_superlink_that_others_can_reach_is_refused_unless_the_settings_allow_it(caplog):
    with serving("0.0.0.0") as port:
        grid = Grid(f"127.0.0.1:{port}")
        with pytest.raises(InputError, match=r"can be reached at all addresses of this machine, .* write open = true"):
            require_closed(grid, allow_open=False)
        require_closed(grid, allow_open=True)
    assert "open = true: the SuperLink's control interface can be reached" in caplog.text


def test_trying_out_on_one_machine_needs_no_setting():
    with serving("127.0.0.1") as port:
        require_closed(Grid(f"127.0.0.1:{port}"), allow_open=False)


def test_an_address_of_the_network_is_named(monkeypatch):
    monkeypatch.setattr(exposure, "answers_anybody", lambda host, port, encrypted: host == "10.0.0.5")
    with pytest.raises(InputError, match=r"can be reached at 10\.0\.0\.5:8000"):
        require_closed(Grid("10.0.0.5:8000"), allow_open=False)


def test_a_proxy_at_the_public_address_that_refuses_strangers_is_no_exposure():
    from idiolect.flower.gateway import Gateway

    with serving("0.0.0.0", Gateway(None)) as port:
        assert find_exposure(SuperLink("127.0.0.1", port, None)) is None


def test_a_simulation_has_nothing_to_reach():
    require_closed(object(), allow_open=False)


@pytest.mark.parametrize("node_auth", [False, True])
def test_nodes_that_nobody_registered_are_found_out(node_auth):
    with serving("127.0.0.1", node_auth=node_auth) as port:
        link = SuperLink("127.0.0.1", port, None)
        assert exposure.admits_any_node(link) is not node_auth


def test_a_superlink_with_tls_must_know_its_nodes(monkeypatch):
    monkeypatch.setattr(exposure, "answers_anybody", lambda *_: False)
    monkeypatch.setattr(exposure, "admits_any_node", lambda _: True)
    assert find_exposure(SuperLink("127.0.0.1", 1, None)) is None
    assert "--enable-supernode-auth" in find_exposure(SuperLink("127.0.0.1", 1, b"ca"))


def test_flowers_grid_tells_where_its_superlink_is():
    from flwr.superlink.grid import HttpGrid

    assert read_superlink(HttpGrid("[::1]:8000", insecure=True, token="t")) == ("::1", 8000, None)
    assert read_superlink(HttpGrid("localhost:8000", root_certificates=b"ca", token="t")) == ("localhost", 8000, b"ca")
