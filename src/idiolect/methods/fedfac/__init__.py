"""FedFac: factor analysis over clients decides which units are shared."""

from .method import FedFac

__all__ = ["FedFac"]
