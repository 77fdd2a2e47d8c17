"""The folder of a run, a comparison or a tuning: whether it is free, what it holds, and one set of sentences for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contract import Method
from ..core.errors import RunFolderError
from ..core.files import is_part
from .lock import LOCK
from .settings import OWN, UNHASHED, Config, read_config, write_config
from .store import Store

CONFIG, STATE, SUMMARY, METRICS, MODELS = "config.yaml", "state.sqlite", "summary.json", "metrics.parquet", "models"
ELSEWHERE = "choose another folder with --out"


def is_taken(folder: Path, beside: Collection[str] = ()) -> bool:
    """Whether there is anything already: a file of this name, or a folder that holds more than a lock, what a process
    that was killed left unfinished, and what may stand `beside`, by name."""
    return folder.exists() and (
        not folder.is_dir() or any(path.name not in (LOCK, *beside) and not is_part(path) for path in folder.iterdir())
    )


def require_free(folder: Path, holds: str, advice: str = ELSEWHERE, beside: Collection[str] = ()) -> None:
    """Raise an error if there is anything already; nothing is ever overwritten. `holds` says what is there."""
    if is_taken(folder, beside):
        raise RunFolderError(f"{folder} {holds}; {advice}")


def new_folder(folder: Path) -> Path:
    """The folder of a new run, which must be free."""
    if folder.is_file():
        raise RunFolderError(f"{folder} is a file; {ELSEWHERE}")
    holds = "already holds a run" if (folder / CONFIG).exists() else "exists and is not empty"
    require_free(folder, holds, f"{ELSEWHERE}, or continue a run with: idiolect resume {folder}")
    return folder


def create_folder(folder: Path, config: Config) -> None:
    """Make a run's folder with its configuration, unless it is there already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CONFIG).exists():
            write_config(config, folder / CONFIG)
    except OSError as error:
        raise RunFolderError(f"the run folder {folder} cannot be written: {error.strerror}") from error


def read_folder(folder: Path) -> dict[str, Any]:
    """The settings of the run in a folder."""
    if not (folder / CONFIG).is_file():
        raise RunFolderError(f"{folder} holds no run: {CONFIG} is missing; start one with: idiolect run")
    return read_config(folder / CONFIG)


def require_objects(folder: Path, settings: Mapping[str, Any], objects: Mapping[str, Any]) -> None:
    """Raise an error if something that was given as an object in Python is not given again."""
    missing = [name for name, value in settings.items() if value == OWN and objects.get(name) is None]
    if missing:
        listing = ", ".join(f"{name}=..." for name in missing)
        raise RunFolderError(
            f"{folder} was started in Python with own {', '.join(missing)}; call it there again with {listing};"
            f" idiolect.load({str(folder)!r}) opens its scores and models without them"
        )
    named = [name for name, value in settings.items() if value == OWN and isinstance(objects[name], str)]
    if named:
        raise RunFolderError(
            f"{folder} was started in Python with own {', '.join(named)}, and {objects[named[0]]!r} is only a name;"
            f" give the same object again"
        )


def differences(stored: Mapping[str, Any], config: Config, ignore: Sequence[str] = ()) -> list[str]:
    """How stored settings differ from a configuration; a setting that is not stored has its default."""
    return compare_settings(Config().as_dict() | dict(stored), config.as_dict(), ignore)


def compare_settings(before: Mapping[str, Any], now: Mapping[str, Any], ignore: Sequence[str] = ()) -> list[str]:
    """How settings, as plain values, differ; those that change no result may."""
    return [
        f"{name}: {before.get(name)} there, {now[name]} now"
        for name in now
        if name not in (*UNHASHED, *ignore) and before.get(name) != now[name]
    ]


SAME = f"{ELSEWHERE}, or use the same settings"


def require_same(folder: Path | None, holds: str, differ: Sequence[str], advice: str = SAME) -> None:
    """Raise an error if there are differences. `holds` says what the folder holds, `advice` what to do."""
    if differ:
        raise RunFolderError(f"{folder} holds {holds} under other settings ({'; '.join(differ)}); {advice}")


def next_round(folder: Path | None, method: Method) -> int:
    """The round that the run in a folder does next; of one that has not begun the first."""
    known = None
    if folder is not None and (folder / STATE).is_file():
        store = Store(folder / STATE, write=False, incomplete=True)
        known = store.facts.next_round
        store.close()
    return -method.needs.setup_rounds if known is None else known
