"""Many runs: methods on identical conditions, seed by seed, and a leaderboard with statistics."""

from .api import compare, resume_comparison
from .leaderboard import Comparison

__all__ = ["Comparison", "compare", "resume_comparison"]
