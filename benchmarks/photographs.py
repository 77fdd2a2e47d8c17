"""A folder of photographs that is large as numbers: peak memory, seconds until training begins, and samples per second
of CPU time, for images held as numbers, decoded when needed, and cached in memory and on disk.

    python benchmarks/photographs.py --photographs 10000 --side 227

Every way is a process of its own. Memory is that of all its processes (proportional set sizes) and of the cache,
looked at five times a second, beside that of a process that only imports PyTorch and Idiolect.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

SITES, KINDS = 10, ("cat", "dog", "fox", "owl", "yak")
RUN = {"method": "fedavg", "rounds": 2, "batch_size": 32, "split": [0.9, 0.05, 0.05], "eval_every": 2}
"""So that little but training is measured."""


def main() -> None:
    """Generate the photographs, measure every way, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=227)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "idiolect-photographs")
    parser.add_argument("--ways", default="", help="only those whose name contains one of these words")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(json.loads(options.child))
        return
    photographs = options.folder / f"{options.photographs}-{options.side}"
    generate(photographs, options.photographs, options.side)
    size = sum(path.stat().st_size for path in photographs.rglob("*.jpg")) / 1e6
    print(f"{options.photographs} photographs of {options.side} pixels, {size:.0f} MB of JPEG")
    cache = str(options.folder / "cache")
    ways = {
        "empty process": {},
        "numbers in memory": {"data": f"folder({photographs}, lazy=false)"},
        "decoded when needed": {"sample_cache_mb": 0},
        "cached in memory, 512 MB": {"sample_cache_mb": 512},
        "cached on disk": {"sample_cache_mb": 4000, "sample_cache": cache},
        "cached on disk, next run": {"sample_cache_mb": 4000, "sample_cache": cache},
        "workers(count=2), 512 MB": {"sample_cache_mb": 512, "engine": "workers(count=2)"},
        "decoded when needed, augmented": {"sample_cache_mb": 0, "transform": "crop(8), flip, jitter, normalize"},
    }
    print(
        "| way | peak MB | until training s | CPU s | round 1, samples / CPU s | round 2 |\n"
        "|---|---:|---:|---:|---:|---:|"
    )
    for name, settings in ways.items():
        if not any(word in name for word in options.ways.split(",")):
            continue
        if name != "empty process":
            settings = {"data": f"folder({photographs}, lazy=true)", "engine": "loop", **settings}
        peak, said = watch(settings)
        loop = "workers" not in name  # whose time is known when they end
        paces = [f"{pace:,.0f}" for pace in said["paces"]] if loop else []
        print(
            f"| {name} | {peak / 1e6:,.0f} | {said['wall']:.1f} | {said['cpu']:.1f} | {' | '.join(paces) or '|'} |",
            flush=True,
        )


def generate(folder: Path, count: int, side: int) -> None:
    """Smooth pictures with some noise, about as large as photographs: folder/site/kind/number.jpg."""
    from PIL import Image

    if (folder / "done").exists():
        return
    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"site {number % SITES}" / KINDS[number // SITES % len(KINDS)]
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).resize(
            (side, side), Image.Resampling.BICUBIC
        )
        pixels = np.asarray(coarse, np.int16) + rng.integers(-9, 10, (side, side, 1), np.int16)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number:05d}.jpg", quality=85)
    (folder / "done").touch()


def measure(settings: dict[str, object]) -> None:
    """In a process of its own: a run, and how long it took to begin; prints JSON."""
    import torch

    import idiolect
    from idiolect.runs.identity import identify
    from idiolect.runs.setup import make_plan, separate

    torch.set_num_threads(1)
    said: dict[str, object] = {"wall": 0.0, "cpu": 0.0, "paces": []}
    if settings:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 7, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
            torch.nn.Linear(128, len(KINDS)),
        )  # fmt: skip
        started, used = time.perf_counter(), time.process_time()
        config, objects = separate({**RUN, "model": model, **settings})
        identify(make_plan(config, objects), config)
        said |= {"wall": time.perf_counter() - started, "cpu": time.process_time() - used}
        marks: list[tuple[float, int]] = []
        idiolect.run(
            **{**RUN, "model": model, **settings},
            watch=lambda progress: marks.append((sum(os.times()[:4]), progress.samples)),
            reporter=note_start(marks),
        )
        pairs = pairwise(marks)
        said["paces"] = [after[1] / max(1e-9, after[0] - before[0]) for before, after in pairs]
    print(json.dumps(said))


def note_start(marks: list[tuple[float, int]]) -> object:
    """A reporter that notes when the first round begins."""
    from idiolect.runs.progress import Reporter

    class Noting(Reporter):
        def start(self, label: str, rounds: int, done: int = 0) -> None:
            super().start(label, rounds, done)
            marks.append((sum(os.times()[:4]), 0))

    return Noting()


def watch(settings: dict[str, object]) -> tuple[int, dict]:
    """Run a way in a process, and look at the memory of it and of its children."""
    process = subprocess.Popen([sys.executable, __file__, "--child", json.dumps(settings)], stdout=subprocess.PIPE)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(0.2)
    assert process.stdout is not None
    lines = process.stdout.read().decode().splitlines()
    return peak, json.loads(lines[-1]) if lines else {"wall": 0.0, "cpu": 0.0, "paces": []}


def memory(pid: int) -> int:
    """Bytes of a process, its children and its cache of samples."""
    total = 0
    for place in tree(pid):
        try:
            lines = (place / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        except OSError:
            continue
    try:
        files = [os.stat(file) for file in Path(f"/proc/{pid}/fd").iterdir() if "idiolect samples" in os.readlink(file)]
    except OSError:
        files = []
    return total + sum({file.st_ino: file.st_blocks * 512 for file in files}.values())


def tree(pid: int) -> list[Path]:
    """The folders under /proc of a process and its children."""
    place = Path(f"/proc/{pid}")
    try:
        children = (place / "task" / str(pid) / "children").read_text().split()
    except OSError:
        children = []
    return [place, *(folder for child in children for folder in tree(int(child)))]


if __name__ == "__main__":
    main()
