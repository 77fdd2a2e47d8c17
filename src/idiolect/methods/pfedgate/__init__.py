"""pFedGate: a gate per client chooses, batch by batch, which blocks of the shared model are used."""

from .method import PFedGate

__all__ = ["PFedGate"]
