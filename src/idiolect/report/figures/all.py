"""Every figure of a study, by the section of the page that shows it."""

from __future__ import annotations

from ..study import Study
from .clients import client_pictures
from .curves import curve_pictures, difference_picture, wins_picture
from .decisions import decision_pictures
from .features import feature_pictures
from .models import model_pictures
from .picture import Picture


def make_pictures(study: Study, target: float = 0.9) -> dict[str, list[Picture]]:
    """Every figure by section; `target` is the share of the best score that the curves mark."""
    pairs = [difference_picture(study), wins_picture(study)] if len(study.methods) > 1 else []
    decisions = [picture for method in study.methods for picture in decision_pictures(study, method)]
    return {
        "Leaderboard": pairs,
        "Curves": curve_pictures(study, target),
        "Clients": client_pictures(study),
        "Why": model_pictures(study) + feature_pictures(study) + decisions,
    }
