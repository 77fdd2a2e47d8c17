"""Many runs: methods on identical conditions, seed by seed, and a leaderboard with statistics."""

from .api import compare
from .leaderboard import Comparison

__all__ = ["Comparison", "compare"]
