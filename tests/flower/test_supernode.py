"""A client runs the app it has agreed to, and no other: the check is made before a line of the app is executed."""

import io
import time
import warnings
import zipfile
from types import SimpleNamespace

import pytest

from idiolect.cli import main as command_line
from idiolect.core.errors import IdiolectError, InputError
from idiolect.flower.supernode import check_app, guard, hash_app, hash_bundle, install_guard, main
from idiolect.flower.template import write_app

flwr = pytest.importorskip("flwr.app", reason="Flower is not installed")


@pytest.fixture
def app(tmp_path):
    write_app(tmp_path / "app")
    return tmp_path / "app"


def bundle(app):
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(app)


def pack(files, **options):
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, text in files:
            archive.writestr(name, text)
    return buffer.getvalue()


def test_what_was_agreed_is_what_flower_sends(app):
    check_app(bundle(app), {}, [hash_app(app)])


@pytest.mark.parametrize("file", ["federation.py", "pyproject.toml"])
def test_an_app_with_other_code_or_settings_is_refused(app, file):
    agreed = hash_app(app)
    text = (app / file).read_text()
    (app / file).write_text(text.replace("rounds = 10", "rounds = 11") if file.endswith("toml") else text + "\nx = 1\n")
    with pytest.raises(InputError, match=f"has not agreed to run the app {hash_app(app)}; it runs {agreed}"):
        check_app(bundle(app), {}, [agreed])


def test_settings_that_are_changed_for_a_run_are_refused(app):
    with pytest.raises(InputError, match="but the run changes federation, save_models; write them into"):
        check_app(bundle(app), {"save_models": True, "federation": "x"}, [hash_app(app)])


@pytest.mark.parametrize("data", [b"", b"PK no archive", pack([("a.py", "1"), ("a.py", "2")])])
def test_what_is_no_app_is_refused(data):
    with pytest.raises(InputError, match="cannot read the app"):
        check_app(data, {}, ["0" * 64])


def test_the_hash_is_of_the_files_and_not_of_their_packing():
    files = [("a.py", "1"), ("b.py", "2")]
    assert hash_bundle(pack(files)) == hash_bundle(pack(files[::-1], compression=zipfile.ZIP_DEFLATED))
    assert hash_bundle(pack([("a.py", "12"), ("b.py", "")])) != hash_bundle(pack(files))
    assert hash_bundle(pack([("b.py", "1"), ("a.py", "2")])) != hash_bundle(pack(files))


def play(app, agreed, changes):
    """What the SuperNode does with the message of a run that it does not know: was the app stored, and the replies."""
    from flwr.app import Metadata, RecordDict
    from flwr.app.message import make_message

    metadata = Metadata(7, "message", 1, 2, "", "", created_at=time.time(), ttl=60.0, message_type="query")
    message = make_message(metadata, RecordDict())
    stored, replies, runs = [], [], iter([changes, {}])

    def pull(*, state, object_store, receive, get_run, get_fab, **_):
        received, _ = receive()
        run = get_run(received.metadata.run_id)
        stored.append((get_fab("hash", 7).content, run.override_config))
        return 7

    checked = guard(pull, lambda reply, state, store: replies.append(reply), agreed)
    done = checked(
        state=None,
        object_store=None,
        receive=lambda: (message, None),
        get_run=lambda run_id: SimpleNamespace(override_config=next(runs)),
        get_fab=lambda fab_hash, run_id: SimpleNamespace(content=bundle(app)),
    )
    return done, stored, replies


def test_the_supernode_stores_the_agreed_app(app):
    done, stored, replies = play(app, [hash_app(app)], {})
    assert (done, len(stored), replies) == (7, 1, [])


@pytest.mark.parametrize("changes", [{}, {"rounds": 5}])
def test_the_supernode_answers_with_a_reason_and_stores_nothing(app, changes):
    agreed = [hash_app(app)] if changes else ["0" * 64]
    done, stored, replies = play(app, agreed, changes)
    assert (done, stored) == (7, [])
    assert replies[0].error.reason.startswith("this client has ")


def test_the_check_fits_this_version_of_flower(monkeypatch):
    from flwr.supernode import start_client_internal as flower

    original = flower._pull_and_store_message
    monkeypatch.setattr(flower, "_pull_and_store_message", original)
    install_guard(["0" * 64])
    assert flower._pull_and_store_message is not original
    monkeypatch.setattr(flower, "_pull_and_store_message", lambda node: None)
    with pytest.raises(IdiolectError, match="apps cannot be checked in this version of Flower"):
        install_guard(["0" * 64])


@pytest.mark.parametrize("arguments", [[], ["--app", "abc"], ["--app", "../x", "--insecure"]])
def test_a_supernode_without_a_hash_does_not_start(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "--app" in capsys.readouterr().err or not arguments


def test_the_command_line_prints_the_hash(app, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line(["deploy", "hash", str(app)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == hash_app(app)


def test_the_hash_of_what_is_no_app_says_so(tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text("[project")
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(SystemExit) as ended:
            command_line(["deploy", "hash", str(folder)])
        assert ended.value.code == 2
        assert "is not a Flower app" in capsys.readouterr().err
