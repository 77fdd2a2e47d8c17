"""Analyses that stand alone: functions of tensors that need no federation, and that the methods use
too. Nothing here knows of clients' data, rounds or messages."""

from .blocks import block_sizes, select_blocks
from .cka import cka
from .conflict import conflict_scores, cosine_matrix, count_conflicts, rank_units, sketch
from .factor import communalities, communalities_from_correlation, correlation, factor_count, shared_units
from .layers import layer_rates, top_fraction_mask, upload_fractions
from .mixing import mixing_ratio, ratio_of_traces, trace
from .outcomes import cka_matrix, effective_classes, first_reaching, target_score, unit_distances, win_tie_loss
from .simplex import simplex_weights

__all__ = [
    "block_sizes",
    "cka",
    "cka_matrix",
    "communalities",
    "communalities_from_correlation",
    "conflict_scores",
    "correlation",
    "cosine_matrix",
    "count_conflicts",
    "effective_classes",
    "factor_count",
    "first_reaching",
    "layer_rates",
    "mixing_ratio",
    "rank_units",
    "ratio_of_traces",
    "select_blocks",
    "shared_units",
    "simplex_weights",
    "sketch",
    "target_score",
    "top_fraction_mask",
    "trace",
    "unit_distances",
    "upload_fractions",
    "win_tie_loss",
]
