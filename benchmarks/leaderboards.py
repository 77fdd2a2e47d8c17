"""Comparisons in several settings, a leaderboard each; what was interrupted continues where it stopped."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect import compare


def leaderboards(about: str, settings: Mapping[str, Mapping[str, Any]], out: str, seeds: int) -> None:
    """Run every setting that the command line asks for, and print its leaderboard."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--only", default="", help="part of a setting's name")
    parser.add_argument("--methods", help="other methods than the setting's")
    parser.add_argument("--rounds", type=int, help="fewer, to see how long it takes")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    asked = {name: given for name in ("methods", "rounds") if (given := getattr(options, name))}
    for name, setting in settings.items():
        if options.only in name:
            given, folder = {**setting, **asked}, options.out / name.replace(", ", "-").replace(" ", "_")
            print(f"\n{name}: {', '.join(f'{key} {value}' for key, value in given.items())}")
            print(compare(seeds=options.seeds, out=folder, engine="loop", jobs=options.jobs, **given))
