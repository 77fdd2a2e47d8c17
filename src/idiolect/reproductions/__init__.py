"""The papers' claims run again: one file per claim, tuned alike, judged by a rule that was written down before."""

from .api import State, find_state, reproduce
from .claims import Case, Claim, Rule
from .ledger import write_ledger
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
    "write_ledger",
]
