"""Tuning: the same number of trials on validation data for every method."""

from .api import Tuned, Tuning, tune
from .records import TrialRecord
from .space import Dimension, derive, parse_dimension, space_of

__all__ = ["Dimension", "TrialRecord", "Tuned", "Tuning", "derive", "parse_dimension", "space_of", "tune"]
