"""Tuning: the same number of trials on validation data for every method."""

from .records import Attempt
from .space import Dimension, derived, read, space_of
from .tuning import Tuned, Tuning, tune

__all__ = ["Attempt", "Dimension", "Tuned", "Tuning", "derived", "read", "space_of", "tune"]
