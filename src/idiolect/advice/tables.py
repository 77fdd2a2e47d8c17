"""An advice as tables, for the terminal and for notebooks: what was found, what is recommended, how a race ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..core.tables import Table, formatter, label, text_table

if TYPE_CHECKING:
    from .api import Advice
    from .race import Race


def findings_table(advice: Advice) -> Table:
    """What was measured of the clients, and how strong it is."""
    rows = [
        (
            finding.scale.name,
            write_number(finding.value),
            finding.level,
            f"{finding.scale.some:g}/{finding.scale.strong:g}",
            finding.scale.meaning,
        )
        for finding in advice.findings
    ]
    return text_table("findings", "", ("", "value", "level", "some/strong", "what the value is"), rows)


def recommended_table(advice: Advice) -> Table:
    """The methods that suit the clients by the rules, and why."""
    rows = [(choice.method, str(choice.points), choice.reason) for choice in advice.recommended]
    return text_table("recommended", "", ("recommended", "points", "why"), rows)


def race_table(race: Race) -> Table:
    """How a race ended."""
    show = formatter(race.metric)
    rows = [
        (
            place.method,
            show(place.score),
            str(place.rung + 1),
            str(place.rounds),
            f"{place.gradients:,}",
            f"{place.seconds:.1f}",
        )
        for place in race.places
    ]
    heads = ("method", f"validation {label(race.metric)}", "rungs", "rounds", "gradients", "s")
    return text_table("race", "", heads, rows)


def write_number(value: float) -> str:
    """A measured number as tables show it.

    >>> write_number(0.64567), write_number(1797.0), write_number(math.nan)
    ('0.646', '1797', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.0f}" if value == round(value) else f"{value:.3f}" if value < 10 else f"{value:.1f}"
