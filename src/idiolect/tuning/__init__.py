"""Tuning: the same number of trials on validation data for every method."""

from .api import Tuned, Tuning, tune
from .comparing import TunedComparison, compare_tuned
from .presets import use_presets
from .records import TrialRecord
from .space import Dimension, derive, parse_dimension, space_of

__all__ = [
    "Dimension",
    "TrialRecord",
    "Tuned",
    "TunedComparison",
    "Tuning",
    "compare_tuned",
    "derive",
    "parse_dimension",
    "space_of",
    "tune",
    "use_presets",
]
