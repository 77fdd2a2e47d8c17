"""Which method suits a federation: how its clients differ, in numbers; rules that read them; a race that verifies."""

from .api import Advice, Study, advise
from .presets import Preset, apply_preset
from .rules import RULES, SCALES, Finding, Recommendation, Rule, Scale, findings, recommend

__all__ = [
    "RULES",
    "SCALES",
    "Advice",
    "Finding",
    "Preset",
    "Recommendation",
    "Rule",
    "Scale",
    "Study",
    "advise",
    "apply_preset",
    "findings",
    "recommend",
]
