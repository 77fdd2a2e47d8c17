"""Real clients over a real network, with Flower: `client_app` and `server_app` make the two halves of a Flower app
out of a function that loads a client's data and one that builds the model."""

from .apps import client_app, server_app
from .loopback import LoopbackEngine
from .project import Project

__all__ = ["LoopbackEngine", "Project", "client_app", "server_app"]
