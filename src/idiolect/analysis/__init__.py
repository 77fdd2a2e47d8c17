"""Analyses that stand alone: functions of tensors that need no federation, and that the methods use
too. Nothing here knows of clients' data, rounds or messages."""

from .blocks import block_sizes, select_blocks
from .cka import cka, cka_matrix, compress_features
from .clusters import cluster_by_ward, common_members
from .conflict import conflict_scores, cosine_matrix, count_conflicts, rank_units, sketch
from .costs import Costs, compare_costs, union_share
from .discrepancy import discrepancy
from .factor import (
    Factors,
    analyse_factors,
    communalities,
    communalities_from_correlation,
    correlation,
    factor_count,
    shared_units,
)
from .gains import Convergence, constant_range, convergence_terms, gains_of_angles, mean_gain, personal_gains
from .layers import kernel_mask, layer_rates, top_fraction_mask, upload_fractions
from .mixing import FeatureValues, feature_values, kernel_ratio, mixing_ratio, ratio_of_traces, trace
from .neurons import neighbour_entropy, neuron_means
from .outcomes import best_window, effective_classes, first_reaching, target_score, unit_distances, win_tie_loss
from .simplex import simplex_weights
from .tangent import (
    SplitRate,
    decay,
    decay_rate,
    gram_matrix,
    mixing_bound,
    mixing_error,
    relu_kernel,
    split_bound,
    split_rate,
)

__all__ = [
    "Convergence",
    "Costs",
    "Factors",
    "FeatureValues",
    "SplitRate",
    "analyse_factors",
    "best_window",
    "block_sizes",
    "cka",
    "cka_matrix",
    "cluster_by_ward",
    "common_members",
    "communalities",
    "communalities_from_correlation",
    "compare_costs",
    "compress_features",
    "conflict_scores",
    "constant_range",
    "convergence_terms",
    "correlation",
    "cosine_matrix",
    "count_conflicts",
    "decay",
    "decay_rate",
    "discrepancy",
    "effective_classes",
    "factor_count",
    "feature_values",
    "first_reaching",
    "gains_of_angles",
    "gram_matrix",
    "kernel_mask",
    "kernel_ratio",
    "layer_rates",
    "mean_gain",
    "mixing_bound",
    "mixing_error",
    "mixing_ratio",
    "neighbour_entropy",
    "neuron_means",
    "personal_gains",
    "rank_units",
    "ratio_of_traces",
    "relu_kernel",
    "select_blocks",
    "shared_units",
    "simplex_weights",
    "sketch",
    "split_bound",
    "split_rate",
    "target_score",
    "top_fraction_mask",
    "trace",
    "union_share",
    "unit_distances",
    "upload_fractions",
    "win_tie_loss",
]
