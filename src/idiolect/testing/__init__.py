"""The conformance suite: what every method must satisfy, public, for other people's methods too.

from idiolect.testing import check_method
check_method("fedprox(mu=0.1)")
"""

from . import scalar as scalar
from .differences import close
from .expressions import (
    check_bad_options,
    check_export,
    check_regression_refused,
    check_wrappers,
    check_wrappers_refused,
)
from .suite import CHECKS, Conformance, check_method
from .tiny import (
    Played,
    play,
    play_params,
    require_equal,
    require_stacking_agrees,
    tiny_federation,
    tiny_model,
    tiny_plan,
)

__all__ = [
    "CHECKS",
    "Conformance",
    "Played",
    "check_bad_options",
    "check_export",
    "check_method",
    "check_regression_refused",
    "check_wrappers",
    "check_wrappers_refused",
    "close",
    "play",
    "play_params",
    "require_equal",
    "require_stacking_agrees",
    "tiny_federation",
    "tiny_model",
    "tiny_plan",
]
