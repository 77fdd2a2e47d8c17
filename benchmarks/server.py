"""The server's mathematics against the pure matrix products of the same size.

python benchmarks/server.py
python benchmarks/server.py --clients 1000      streamed from disk: 1,000 updates do not fit in memory
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ratios import show

from idiolect.analysis import communalities, conflict_scores, cosine_matrix, sketch, top_fraction_mask
from idiolect.core import tree
from idiolect.models import ResNet18

DIM = 512


def timed(work: Callable[[], Any], times: int = 3) -> float:
    """The least seconds of a few tries."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def resnet_units() -> dict[str, int]:
    """The layers of ResNet-18 and how many parameters each has."""
    module = ResNet18().build((3, 32, 32), 10)
    units: dict[str, int] = {}
    for name, leaf in module.named_parameters():
        unit = name.rpartition(".")[0]
        units[unit] = units.get(unit, 0) + leaf.numel()
    return units


def conflicts(clients: int, folder: str) -> list[dict[str, Any]]:
    """Conflict scores of all layers of ResNet-18, exact and sketched, and the products alone."""
    units = resnet_units()
    draw = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        updates = {}
        for number, (name, size) in enumerate(units.items()):
            path = str(Path(place) / f"{number}.bin")
            held = torch.from_file(path, shared=True, size=clients * size).view(clients, size)
            common = torch.randn(size, generator=draw)
            for row in held:  # in different directions around a common one, some against it
                row.copy_(torch.randn(size, generator=draw) + 0.3 * common * torch.randn((), generator=draw))
            updates[name] = held

        def products() -> None:
            for rows in updates.values():
                for block in torch.split(rows, 2**18, dim=1):
                    block @ block.T

        few = 1 if clients > 200 else 3
        exact, pure = timed(lambda: conflict_scores(updates, -0.1), few), timed(products, few)
        folded = timed(lambda: [cosine_matrix(sketch(rows, 1024)) for rows in updates.values()], few)
        error = max(
            float((cosine_matrix(rows) - cosine_matrix(sketch(rows, 1024))).abs().max())
            for rows in list(updates.values())[:: max(1, len(updates) // 8)]
        )
    total = sum(units.values()) / 1e6
    what = f"{clients} clients, {len(units)} layers, {total:.1f} M parameters"
    return [
        {"": f"conflict scores, {what}", "seconds": exact, "over products": exact / pure, "largest error": ""},
        {
            "": "the same, sketched to 1,024",
            "seconds": folded,
            "over products": folded / pure,
            "largest error": f"{error:.3f}",
        },
    ]


def others() -> list[dict[str, Any]]:
    """Factor analysis of a wide layer, masked means, and masks."""
    rows = torch.randn(4096, 4096, generator=torch.Generator().manual_seed(0))
    pure = timed(lambda: rows.T @ rows)
    factor = timed(lambda: communalities(rows, 0.85, estimator="pc"), 1)
    eigen = timed(lambda: torch.linalg.eigvalsh(rows.T @ rows), 1)
    big = {"w": torch.randn(11_000_000)}
    trees, masks = [big] * 10, [{"w": torch.rand(11_000_000) > 0.5}] * 10
    weighted = timed(lambda: sum(each["w"] * 0.1 for each in trees))
    masked = timed(lambda: tree.mean(trees, [1.0] * 10, masks, big))
    plain = timed(lambda: tree.mean(trees, [1.0] * 10, None, big))
    chosen, sorting = timed(lambda: top_fraction_mask(big["w"], 0.3)), timed(lambda: big["w"].sort())
    return [
        {
            "": "factor analysis (pc), 4,096 units",
            "seconds": factor,
            "over": factor / pure,
            "what": "one product of that size",
        },
        {"": "the same", "seconds": factor, "over": factor / eigen, "what": "its eigenvalues"},
        {"": "mean of 10 x 11 M", "seconds": plain, "over": plain / weighted, "what": "a weighted sum in fp32"},
        {
            "": "masked mean of 10 x 11 M",
            "seconds": masked,
            "over": masked / weighted,
            "what": "a weighted sum in fp32",
        },
        {"": "mask of the largest 30 % of 11 M", "seconds": chosen, "over": chosen / sorting, "what": "sorting them"},
    ]


def main() -> None:
    """Measure, print tables, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--folder", default=".", help="where updates lie while it runs")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    show("conflict scores", conflicts(options.clients, options.folder), options.out / f"server {options.clients}.json")
    if options.clients == 100:
        show("other server mathematics", others(), options.out / "server others.json")


if __name__ == "__main__":
    main()
