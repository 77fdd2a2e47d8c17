"""FedLAG: the server finds the layers that clients pull apart, and these become personal."""

from .method import FedLAG

__all__ = ["FedLAG"]
