"""FedPer: the head stays private, the body is averaged."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import About, register
from ..contract.parts.private_layers import PrivateLayers


@register("fedper")
@dataclass(frozen=True)
class FedPer(PrivateLayers):
    """FedPer (Arivazhagan et al., 2019): body and private head are trained jointly, the body is averaged.

    Run it: ``idiolect run fedper``.
    """

    about = About(
        "The head stays private, the body is averaged",
        family="private layers",
        paper="arivazhagan2019fedper",
        reveals="the body (all but the last layers)",
        stays="the head",
    )
    identities = {"fedper(layers=0)": "fedavg"}
