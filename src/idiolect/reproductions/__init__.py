"""The papers' claims run again: one file per claim, tuned alike, judged by a rule that was written down before."""

from .api import State, find_state, reproduce
from .claims import Case, Claim, Rule
from .grand_page import write_grand
from .ledger import write_ledger
from .presets import write_distances, write_presets
from .reading import read_claim, read_claims
from .verdicts import Verdict, judge

__all__ = [
    "Case",
    "Claim",
    "Rule",
    "State",
    "Verdict",
    "find_state",
    "judge",
    "read_claim",
    "read_claims",
    "reproduce",
    "write_distances",
    "write_grand",
    "write_ledger",
    "write_presets",
]
