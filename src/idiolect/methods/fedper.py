"""FedPer: the head stays private, the body is averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract import About, register
from ..contract.parts.private_layers import PrivateLayers


@register("fedper")
@dataclass(frozen=True)
class FedPer(PrivateLayers):
    """FedPer (Arivazhagan et al., 2019): body and private head are trained jointly, the body is averaged.

    Hand-worked: two clients of equal size train body 0 to 2 and to 4 and heads to 5 and to 7; afterwards both hold
    body 3, and heads 5 and 7.
    """

    about = About(
        "The head stays private, the body is averaged",
        paper="arivazhagan2019fedper",
        reveals="the body (all but the last layers)",
        stays="the head",
    )
    identities: ClassVar[dict[str, str]] = {"fedper(layers=0)": "fedavg"}
