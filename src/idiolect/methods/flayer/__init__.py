"""FLAYER: own and global head mixed by accuracy, a learning rate per layer, and an upload of what moved most."""

from .method import FLAYER
from .rates import layer_numbers

__all__ = ["FLAYER", "layer_numbers"]
