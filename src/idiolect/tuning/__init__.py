"""Tuning: the same number of trials on validation data for every method."""

from .api import Tuned, Tuning, tune
from .records import Attempt
from .space import Dimension, derived, read, space_of

__all__ = ["Attempt", "Dimension", "Tuned", "Tuning", "derived", "read", "space_of", "tune"]
