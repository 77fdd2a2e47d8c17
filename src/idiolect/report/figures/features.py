"""What personal models see: how active the features are that enter the last layer, client by client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...analysis import FeatureValues, feature_values
from ...contract import predicts_its_own_way
from ...core.errors import ModelError
from ...core.names import picture_texts
from ...runs.result import Result
from ..study import Study
from .picture import HEIGHT, WHOLE, WIDTH, Picture, add_legend, colour, legend_height, line_style, make_picture
from .similarity import SAMPLES, choose_clients

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_CLIENTS = 6


def feature_pictures(study: Study) -> list[Picture]:
    """Feature values per client and method; none where no method's models show their features."""
    found: dict[str, dict[int, FeatureValues]] = {}
    for method in study.methods:
        with study.result(method) as result:
            if result is not None and (values := client_features(result)):
                found[method] = values
    if not found:
        return []
    clients = sorted({client for values in found.values() for client in values})

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        width = 0.8 / len(found)
        for place, (method, values) in enumerate(found.items()):
            shade = colour(study.methods.index(method))
            for column, client in enumerate(clients):
                if client not in values:
                    continue
                at = column + (place - (len(found) - 1) / 2) * width
                above.bar(at, 100 * values[client].active, 0.8 * width, color=shade)
                low, first, middle, third, high = values[client].percentiles
                below.plot([at, at], [low, high], color=shade, linewidth=0.8)
                below.bar(at, third - first, 0.8 * width, first, color=shade, alpha=0.45)
                below.plot([at - 0.4 * width, at + 0.4 * width], [middle, middle], color=shade, linewidth=1.8)
            below.plot([], [], **line_style(study.methods.index(method), study.methods))
        above.set_ylabel("active (%)")
        above.set_ylim(0, 100)
        below.set_ylabel("value")
        below.set_ylim(bottom=0)
        below.set_xticks(range(len(clients)), picture_texts([study.name_client(c) for c in clients], 14))
        add_legend(figure, below)

    picture = make_picture(
        "models-features",
        "How active the features of personal models are",
        f"What enters the last layer, on at most {SAMPLES} of the client's own training samples, at the selected round,"
        f" seed {study.seeds[0]}. Above: the share of values above 0. Below: those values; the box holds the middle"
        " half, the line is the median, the whiskers reach from the 10th to the 90th percentile.",
        paint,
        (WHOLE if len(found) * len(clients) > 24 else WIDTH, HEIGHT + 0.6 + legend_height(list(found))),
    )
    return [picture]


@torch.no_grad()
def client_features(result: Result) -> dict[int, FeatureValues]:
    """Of some clients, the features of their own model on their own samples; none of a method that predicts its own
    way, or of a network whose last layer cannot be watched."""
    plan, values = result.plan, {}
    if predicts_its_own_way(plan.method):
        return {}
    for client in choose_clients(result, FEW_CLIENTS):
        task, personal = plan.context(client, 0).task, result.personal_slots(client)
        try:
            task.require_features(plan.method.name)
        except ModelError:
            return {}
        x = plan.split(client, "train", SAMPLES)[0]
        features = task.forward(personal["params"], personal["buffers"], x).features
        if torch.isfinite(features).all():
            values[client] = feature_values(features)
    return values
