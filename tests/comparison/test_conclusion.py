"""The sentence that ends a comparison, on scores whose tests are worked out by hand."""

import math

from idiolect.comparison.conclusion import conclude_scores

BOTH = {"fedavg": [0.80, 0.81, 0.82], "local": [0.70, 0.71, 0.72]}


def test_a_clear_winner_is_named_with_its_interval():
    # Differences to FedAvg of 10, 10 and 10.5 points: mean 10.17, s = 0.2887, half width 4.3027 s / sqrt(3) = 0.717.
    sentence = conclude_scores({**BOTH, "ditto": [0.90, 0.91, 0.925], "fedper": [0.80, 0.83, 0.80]})
    assert "fedavg has 81.00 % and local has 71.00 %" in sentence
    assert "1 of 2 other methods did better than both" in sentence
    assert "ditto, differs from fedavg by +10.17 points (95 % interval +9.45 to +10.88" in sentence


def test_no_difference_is_called_none():
    sentence = conclude_scores({**BOTH, "ditto": [0.80, 0.83, 0.82]})
    assert "ditto did not do reliably better than both (Holm-corrected p >= 0.05); it differs from fedavg" in sentence
    assert "by +0.67 points (95 % interval -2.20 to +3.54)" in sentence


def test_better_than_one_reference_only_does_not_count():
    sentence = conclude_scores({**BOTH, "ditto": [0.75, 0.77, 0.76]})
    assert "ditto did not do better than fedavg; it differs from fedavg" in sentence
    assert "by -5.00 points" in sentence


def test_losses_count_downwards():
    sentence = conclude_scores({"fedavg": [2.0, 2.1], "local": [3.0, 3.1], "ditto": [1.0, 1.101]}, "mse", lower=True)
    assert "ditto did better than both (Holm-corrected p < 0.05); it differs from fedavg" in sentence
    assert "by -1.00 (95 % interval -1.01 to -0.99)" in sentence


def test_what_is_undefined_is_not_concluded():
    one_seed = conclude_scores({name: values[:1] for name, values in BOTH.items()} | {"ditto": [0.9]})
    undefined = conclude_scores({**BOTH, "ditto": [math.nan, math.nan, 0.9]})
    absent = conclude_scores({"fedavg": [0.8, 0.8], "ditto": [0.9, 0.9]})
    assert one_seed.startswith("Nothing can be concluded: it takes another method")
    assert undefined == one_seed
    assert absent == "Nothing can be concluded: local did not take part or failed."
