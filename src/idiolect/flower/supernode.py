"""Flower's SuperNode for a client that runs only the app it has agreed to: python -m idiolect.flower.supernode --help

A SuperNode downloads an app from the server and executes it, so a check inside the app would be the server's own. This
one is made in the SuperNode, by the packages on the client's machine, before a line of the app is executed."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import io
import logging
import sys
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import IdiolectError, InputError

log = logging.getLogger("idiolect")
NEEDED = {"state", "object_store", "receive", "get_run", "get_fab"}
"""What Flower hands to the function that fetches a message, and with it the app."""
HASH_LENGTH = 64


def hash_app(folder: Path) -> str:
    """The hash of an app's files and settings, as Flower would send them.

    Args:
        folder: the app's folder.
    """
    from flwr.cli.build import build_fab_from_disk

    if not (folder / "pyproject.toml").is_file():
        raise InputError(f"{folder} is not a Flower app: it has no pyproject.toml")
    try:
        return hash_bundle(build_fab_from_disk(folder))
    except (ValueError, OSError) as error:
        raise InputError(f"{folder} is not a Flower app: {error}") from error


def hash_bundle(bundle: bytes) -> str:
    """The hash of an app as Flower sends it: of the names and the bytes of all its files, however they are packed.

    Args:
        bundle: a zip archive.
    """
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise InputError("the app has two files of the same name")
        lines = []
        for name in sorted(names):
            with archive.open(name) as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()} {name!r}\n")  # type: ignore[arg-type]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_app(bundle: bytes, changes: Mapping[str, Any], agreed: Collection[str]) -> None:
    """Raise `InputError` unless the client has agreed to an app, with the settings that are written in it.

    Args:
        bundle: the app as Flower sends it.
        changes: the settings that whoever started the run has changed.
        agreed: the hashes of the apps that the client runs.
    """
    try:
        found = hash_bundle(bundle)
    except Exception as error:  # whatever the server sends
        raise InputError(f"this client cannot read the app ({type(error).__name__}), so it does not run it") from error
    if found not in agreed:
        raise InputError(f"this client has not agreed to run the app {found}; it runs {', '.join(agreed)}")
    if changes:
        names = ", ".join(sorted(map(str, changes)))[:200]
        raise InputError(
            f"this client has agreed to the settings in the app, but the run changes {names}; write them into its "
            f"pyproject.toml, and agree on its new hash"
        )


def guard(pull: Callable[..., Any], insert: Callable[..., None], agreed: Collection[str]) -> Callable[..., Any]:
    """Flower's function that fetches a message, with a check of the app where it fetches that too. A refusal goes back
    to the server as an error, and the SuperNode goes on.

    Args:
        pull: Flower's function.
        insert: Flower's function that stores a reply to be sent.
        agreed: the hashes of the apps that the client runs.
    """

    def pull_checked(**given: Any) -> Any:
        seen: dict[str, Any] = {}

        def receive() -> Any:
            if (received := given["receive"]()) is not None:
                seen["message"] = received[0]
            return received

        def get_run(run_id: int) -> Any:
            seen["run"] = given["get_run"](run_id)
            return seen["run"]

        def get_fab(fab_hash: str, run_id: int) -> Any:
            fab = given["get_fab"](fab_hash, run_id)
            check_app(fab.content, seen["run"].override_config, agreed)
            return fab

        try:
            return pull(**{**given, "receive": receive, "get_run": get_run, "get_fab": get_fab})
        except InputError as error:
            from flwr.app import Error, Message
            from flwr.common.constant import ErrorCode

            log.error("%s", error)
            reply = Message(Error(ErrorCode.INVALID_FAB, str(error)), reply_to=seen["message"])
            insert(reply, given["state"], given["object_store"])
            return seen["message"].metadata.run_id

    return pull_checked


def install_guard(agreed: Collection[str]) -> None:
    """Put the check into Flower's SuperNode, in this process. Where Flower has changed so much that it does not fit,
    nothing is started."""
    from flwr.supernode import start_client_internal as flower

    pull, insert = (getattr(flower, name, None) for name in ("_pull_and_store_message", "_insert_message"))
    if pull is None or insert is None or not set(inspect.signature(pull).parameters) >= NEEDED:
        raise IdiolectError("apps cannot be checked in this version of Flower; install idiolect[flower]")
    flower._pull_and_store_message = guard(pull, insert, agreed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a SuperNode until it is ended."""
    from .apps import configure_logging, require_flower

    parser = argparse.ArgumentParser(
        description="Flower's SuperNode, for a client that runs only the app it has agreed to. All options of "
        "flower-supernode are passed on to it.",
        allow_abbrev=False,
    )
    words = "the hash of an app that may be run, as idiolect deploy hash prints it; may be repeated"
    parser.add_argument("--app", action="append", required=True, metavar="HASH", help=words)
    chosen, rest = parser.parse_known_args(arguments)
    for each in chosen.app:
        if len(each) != HASH_LENGTH or not set(each) <= set("0123456789abcdef"):
            parser.error(f"{each!r:.80} is not the hash of an app; idiolect deploy hash DIR prints it")
    try:
        require_flower()
        install_guard(chosen.app)
    except IdiolectError as error:
        parser.error(str(error))
    from flwr.supernode.cli.flower_supernode import flower_supernode

    configure_logging()
    sys.argv = ["flower-supernode", *rest]
    flower_supernode()


if __name__ == "__main__":
    main()
