"""Networks: the papers' models by name, built to fit the data."""

from .build import Described, build, default_model
from .networks import Cnn4, LeNet5w, LinearModel, Mlp, Network, Simulation, models

__all__ = [
    "Cnn4",
    "Described",
    "LeNet5w",
    "LinearModel",
    "Mlp",
    "Network",
    "Simulation",
    "build",
    "default_model",
    "models",
]
