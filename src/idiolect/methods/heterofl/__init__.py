"""HeteroFL: clients train slices of the shared model, as wide as they can afford."""

from .method import HeteroFL

__all__ = ["HeteroFL"]
