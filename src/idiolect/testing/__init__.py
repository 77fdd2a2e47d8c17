"""The conformance suite: what every method must satisfy, public, for other people's methods too.

from idiolect.testing import check_method
check_method("fedprox(mu=0.1)")
"""

from .checks import CHECKS, check_method
from .tiny import Played, close, play, require_equal, tiny_federation, tiny_model, tiny_plan, views

__all__ = [
    "CHECKS",
    "Played",
    "check_method",
    "close",
    "play",
    "require_equal",
    "tiny_federation",
    "tiny_model",
    "tiny_plan",
    "views",
]
