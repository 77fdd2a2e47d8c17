"""The live page: what it shows of runs at work, whom it answers, and that names stay text."""

import http.client
import json
import socket
import sqlite3
import threading
import time

import pytest

from idiolect.core.errors import InputError, RunFolderError
from idiolect.report import live
from idiolect.runs.store import Store

HOSTILE = "<img src=x onerror=alert(1)>"


def row(round, value, client=0, point="personal", split="val", metric="accuracy"):
    return (round, client, "seen", point, split, metric, value, 10)


def begin(folder, rounds=3, method="fedavg"):
    """A run at work: its store is open, and a round is done."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(f"method: {json.dumps(method)}\nrounds: {rounds}\n")
    store = Store(folder / "state.sqlite")
    rows = [row(0, 0.5), row(0, 0.75, client=1), row(0, 1.5, point="train", split="train", metric="loss")]
    facts = {"next_round": 1, "seconds": 2.0, "refusals": {"not finite": 2}}
    store.commit(0, {}, {}, rows, {**facts, "identity": {"clients": ["north", HOSTILE]}})
    return store


@pytest.fixture
def run(tmp_path):
    store = begin(tmp_path / "a")
    yield tmp_path / "a", store
    store.close()


@pytest.fixture
def serve():
    """Start a server of a folder, and say its port."""
    servers = []

    def start(folder):
        server = live.make_server(folder, port=0, every=0.2)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(port, path="/", host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}" if host is None else host})
    answer = connection.getresponse()
    text = answer.read().decode().replace("<wbr>", "")
    connection.close()
    return answer, text


def test_it_shows_how_far_a_run_is_its_clients_and_what_was_refused(run, serve):
    answer, text = ask(serve(run[0]), "/now")
    assert answer.status == 200
    assert "round 1 of 3, about 0:04 of computing left." in text
    assert 'data-value="62.5"' in text
    assert "fedavg, seed 0: 2 uploads were left out: 2 not finite." in text
    assert ">north</th>" in text
    assert "Validation accuracy" in text


def test_names_are_text_and_never_markup(tmp_path, serve):
    begin(tmp_path / "a", method=HOSTILE).close()
    for path in ("/", "/now"):
        _, text = ask(serve(tmp_path / "a"), path)
        assert "<img" not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_a_new_round_is_seen_and_the_run_is_not_disturbed(run, serve):
    folder, store = run
    view = live.View(folder, every=0.0, metric=None)
    assert "round 1 of 3" in view.now()
    other = sqlite3.connect(folder / "state.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # a round is being committed
    assert "round 1 of 3" in view.now()
    other.execute("ROLLBACK")
    other.close()
    store.commit(1, {}, {}, [row(1, float("nan")), row(1, 0.8, client=1)], {"next_round": 2, "seconds": 4.0})
    assert "round 2 of 3" in view.now()


def test_what_is_half_written_is_shown_as_far_as_it_is(tmp_path):
    begin(tmp_path / "a").close()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.yaml").write_text("method: local\nrounds: 2\n")
    view = live.View(tmp_path, every=0.0, metric=None)
    text = view.now()
    assert "0 of 2 runs done, round 1 of 5 of all" in text
    assert "b: local" in text
    assert "not begun" in text
    (tmp_path / "b" / "config.yaml").write_text("method: [")
    assert "a: fedavg" in view.now()
    (tmp_path / "a" / "state.sqlite").write_bytes(b"no store")
    assert "cannot be read" in live.View(tmp_path / "a", 0.0, None).now()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "localhost.evil.example:1"])
def test_another_host_is_refused(run, serve, host):
    answer, text = ask(serve(run[0]), host=host)
    assert answer.status == 403
    assert "<" not in text


@pytest.mark.parametrize("path", ["/state.sqlite", "/../config.yaml", "/now?a", "/now/", "/favicon.ico"])
def test_any_path_but_its_own_is_refused(run, serve, path):
    assert ask(serve(run[0]), path)[0].status == 404


def test_it_listens_on_this_machine_alone_and_changes_nothing(run, serve):
    port = serve(run[0])
    assert ask(port, host="localhost")[0].status == 200
    assert ask(port, method="POST")[0].status == 501
    answer, text = ask(port)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'; connect-src 'self'; script-src 'sha256-" in text
    with live.make_server(run[0], port=0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_taken_port_and_a_folder_without_runs_get_a_sentence(run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} cannot be used .*; choose another with --port"):
            live.make_server(run[0], port)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="holds no run and no comparison"):
        live.make_server(tmp_path / "empty", 0)


def test_ctrl_c_ends_it_cleanly(run, monkeypatch):
    def interrupt(server):
        raise KeyboardInterrupt

    told = []
    monkeypatch.setattr(live.ThreadingHTTPServer, "serve_forever", interrupt)
    live.serve(run[0], port=0, ready=told.append)
    assert told[0].startswith("http://127.0.0.1:")


def test_what_a_run_is_doing_stands_before_its_scores(run):
    heads = [column.head for column in live.runs_table([], {}, "accuracy").columns]
    assert heads[:4] == ["run", "seed", "state", "round"]
    assert heads.index("left") < heads.index("accuracy (%)")


# -- in a browser -----------------------------------------------------------------------------------------------


def wait_for(chromium, expression):
    deadline = time.monotonic() + 60
    while not chromium.evaluate(expression):
        assert time.monotonic() < deadline, expression
        time.sleep(0.05)


def test_the_page_looks_again_by_itself_and_keeps_what_the_reader_chose(tmp_path, serve, chromium):
    stores = [begin(tmp_path / name, method=method) for name, method in (("a", HOSTILE), ("b", "local"))]
    port = serve(tmp_path)
    chromium.requests.clear()
    chromium.complaints.clear()
    chromium.visit(f"http://127.0.0.1:{port}/")
    status = "document.querySelector('.verdict').innerText"
    assert "round 2 of 6" in chromium.evaluate(status)
    chromium.evaluate("document.querySelector('.legend button').focus()")
    chromium.evaluate("document.activeElement.click()")
    chromium.evaluate("document.querySelector('#one-by-one').open = true")
    for store in stores:
        store.commit(1, {}, {}, [row(1, 0.8)], {"next_round": 2, "seconds": 4.0})
    wait_for(chromium, f"{status}.includes('round 4 of 6')")
    assert chromium.evaluate("document.querySelector('#one-by-one').open")
    assert chromium.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
    assert chromium.evaluate("document.querySelectorAll('#score g[data-hidden]').length") == 1
    assert chromium.evaluate("document.querySelectorAll('img').length") == 0
    assert chromium.complaints == []
    assert all(url.startswith((f"http://127.0.0.1:{port}/", "data:")) for url in chromium.requests)
    chromium.visit("about:blank")  # or it would go on asking
    for store in stores:
        store.close()
