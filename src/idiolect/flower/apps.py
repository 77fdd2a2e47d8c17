"""The two halves of a Flower app: what Flower calls on a client and on the server, and how parcels travel by Flower."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError, MissingExtraError
from ..runs.export import export
from .client import Desk, guarded
from .messages import Parcel
from .personal import personal_of
from .project import Project
from .server import only_one, serve
from .settings import client_folder, read_settings, server_folder

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

log = logging.getLogger("idiolect")
STYPE = "idiolect.slots"
TYPES = {"hello": "query", "finish": "query", "train": "train", "evaluate": "evaluate"}


def client_app(project: Project) -> ClientApp:
    """The client's half of a Flower app. A SuperNode says which client it is in its node config, as in `client=0`
    (or `partition-id`, as simulations do), and may give a `folder` for the client's state."""
    require_flower()
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        note_to(None)
        index = client_number(context.node_config)
        answer = lambda ask: respond(project, ask, index, context)  # noqa: E731
        return Message(packed(guarded(unpacked(message.content), index, answer)), reply_to=message)

    for register in (app.query, app.train, app.evaluate):
        register()(handle)
    return app


def require_flower() -> None:
    """Raise `MissingExtraError` where Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise MissingExtraError("running over a network needs Flower: pip install idiolect[flower]")


def respond(project: Project, ask: Parcel, index: int, context: Context) -> Parcel:
    """A client's answer, from its own data and its own folder."""
    config, deployment = read_settings(context.run_config)
    own = context.node_config.get("folder")
    folder = client_folder(deployment, index) if own is None else Path(str(own)) / deployment.federation
    plan = project.plan(config, project.federation(config, deployment, index))
    desk = Desk(plan, index, folder, {"settings": dict(context.run_config), "own": project != Project()})
    try:
        told = desk.answer(ask)
    finally:
        desk.close()
    if config.save_models and ask.head.get("kind") == "finish" and not (folder / "model").exists():
        export(personal_of(folder, project), folder / "model")
    return told


def client_number(node: Mapping[str, Any]) -> int:
    """Which client a node is."""
    found = node.get("client", node.get("partition-id"))
    if type(found) is not int:
        raise InputError(
            "this SuperNode does not say which client it is; start it with a number, as in --node-config 'client=0'"
        )
    return found


def server_app(project: Project) -> ServerApp:
    """The server's half of a Flower app."""
    require_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config, deployment = read_settings(context.run_config)
        folder = server_folder(deployment)
        with only_one(folder, patience=30.0):
            note_to(folder / "log.txt")
            serve(GridPost(grid, deployment.timeout), project, config, deployment, folder).store.close()

    return app


def note_to(path: Path | None) -> None:
    """Show what happens, and write it into a file too."""
    if not log.handlers:
        shown = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
        handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
        handlers += [] if path is None else [logging.FileHandler(path)]
        for each in handlers:
            each.setFormatter(shown)
            log.addHandler(each)
        log.setLevel(logging.INFO)
        log.propagate = False


class GridPost:
    """Parcels by Flower: every answer is fetched by itself, so that one that cannot be read spoils no other."""

    poll = 0.5

    def __init__(self, grid: Grid, lifetime: float) -> None:
        self.grid, self.lifetime = grid, lifetime

    def nodes(self) -> frozenset[int]:
        """The SuperNodes that are connected."""
        return frozenset(self.grid.get_node_ids())

    def send(self, parcels: Mapping[int, Parcel]) -> dict[int, str]:
        """Hand parcels to the SuperLink."""
        from flwr.app import Message

        messages = [
            Message(packed(parcel), node, TYPES[parcel.get("kind", str)], ttl=self.lifetime)
            for node, parcel in parcels.items()
        ]
        tickets = self.grid.push_messages(messages) if messages else ()
        return {node: ticket for node, ticket in zip(parcels, tickets, strict=False) if ticket}

    def collect(self, tickets: Collection[str]) -> dict[str, Parcel | str]:
        """Fetch what the SuperLink has for these tickets."""
        import httpx

        found: dict[str, Parcel | str] = {}
        for ticket in tickets:
            try:
                for message in self.grid.pull_messages([ticket]):
                    found[ticket] = str(message.error.reason) if message.has_error() else unpacked(message.content)
            except httpx.HTTPError as error:
                log.warning("the SuperLink cannot be reached: %s", error)
            except Exception as error:  # whatever a client sends must not stop the server
                found[ticket] = f"its message cannot be read ({type(error).__name__}: {error!s:.200})"
        return found


def packed(parcel: Parcel) -> RecordDict:
    """A parcel as Flower sends it: bodies go as raw bytes, which Flower cuts into pieces and sends once."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {name: Array("uint8", (len(data),), STYPE, data) for name, data in parcel.bodies.items()}
    return RecordDict({"head": ConfigRecord(dict(parcel.head)), "bodies": ArrayRecord(arrays)})


def unpacked(content: RecordDict) -> Parcel:
    """A parcel from what Flower received. Only plain values and bytes are taken; nothing is unpickled."""
    (head,), (bodies,) = content.config_records.values(), content.array_records.values()
    values = {name: each for name, each in head.items() if isinstance(each, int | float | str | bool)}
    return Parcel(values, {name: bytes(array.data) for name, array in bodies.items()})
