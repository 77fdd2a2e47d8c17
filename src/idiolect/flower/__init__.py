"""Training over a network with Flower: `client_app` and `server_app` make a ClientApp and a ServerApp of a `Project`,
the user's functions that load a client's data and build the model."""

from .apps import client_app, server_app
from .loopback import LoopbackEngine
from .project import Project

__all__ = ["LoopbackEngine", "Project", "client_app", "server_app"]
