"""The ClientApp and the ServerApp: what Flower calls on a client and on the server."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import IdiolectError, InputError, MissingExtraError
from ..core.trust import remember_code
from ..runs.export import export
from .client import ClientService, greet, report_problems
from .exposure import require_closed
from .folders import client_folder, lock_server, server_folder
from .messages import Message
from .personal import load_personal_model
from .project import Project
from .server import serve
from .settings import read_settings
from .transport import GridTransport, from_records, to_records

if TYPE_CHECKING:
    import flwr.app
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

log = logging.getLogger("idiolect")
LOCK_TIMEOUT = 30.0


def client_app(project: Project) -> ClientApp:
    """Make the ClientApp of a Flower app.

    A SuperNode says which client it is in its node config, as in `client=0` (or `partition-id`, as in simulations), and
    may give a `folder` for the client's state.

    Args:
        project: the user's functions.
    """
    require_flower()
    import flwr.app
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def handle(message: flwr.app.Message, context: flwr.app.Context) -> flwr.app.Message:
        configure_logging()
        index = read_client_index(context.node_config)
        reply = report_problems(
            lambda request: handle_request(project, request, index, context), from_records(message.content), index
        )
        return flwr.app.Message(to_records(reply), reply_to=message)

    for register in (app.query, app.train, app.evaluate):
        register()(handle)
    return app


def server_app(project: Project) -> ServerApp:
    """Make the ServerApp of a Flower app.

    Args:
        project: the user's functions, the same as on the clients.
    """
    require_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: flwr.app.Context) -> None:
        config, deployment = read_settings(context.run_config)
        folder = server_folder(deployment)
        with lock_server(folder, LOCK_TIMEOUT):
            configure_logging(folder / "log.txt")
            try:
                require_closed(grid, deployment.open)
                serve(GridTransport(grid, deployment.timeout), project, config, deployment, folder).store.close()
            except IdiolectError as error:
                log.error("%s", error)
                raise

    return app


def require_flower() -> None:
    """Raise `MissingExtraError` where Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise MissingExtraError("running over a network needs Flower: pip install idiolect[flower]")


def handle_request(project: Project, request: Message, index: int, context: flwr.app.Context) -> Message:
    """Handle a request on a client's machine, from its own data and its own folder."""
    config, deployment = read_settings(context.run_config)
    own_folder = context.node_config.get("folder")
    folder = client_folder(deployment, index) if own_folder is None else Path(str(own_folder)) / deployment.federation
    agreed = request.get("data", str) if "data" in request.fields else ""
    data = project.load_federation(config, deployment, index, agreed)
    remember_code(config.as_dict().values())
    if request.fields.get("kind") == "hello" and not agreed:
        return greet(data, index, folder, request)
    plan = project.build_plan(config, data)
    remember_code(config.as_dict().values())
    notes = {"settings": dict(context.run_config), "own": project != Project(), "data": agreed}
    service = ClientService(plan, index, folder, notes)
    try:
        reply = service.handle(request)
    finally:
        service.close()
    if config.save_models and request.fields.get("kind") == "finish" and not (folder / "model").exists():
        export(load_personal_model(folder, project), folder / "model")
    return reply


def read_client_index(node_config: Mapping[str, Any]) -> int:
    """Read from a SuperNode's node config which client it is."""
    index = node_config.get("client", node_config.get("partition-id"))
    if type(index) is not int:
        raise InputError(
            "this SuperNode does not say which client it is; start it with a number, as in --node-config 'client=0'"
        )
    return index


def configure_logging(path: Path | None = None) -> None:
    """Log to the terminal, and to a file if one is given."""
    if log.handlers:
        return
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    handlers += [] if path is None else [logging.FileHandler(path)]
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
