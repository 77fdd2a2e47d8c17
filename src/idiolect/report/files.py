"""The figures and tables of a study as files, ready for a paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..core.errors import OptionError, RunFolderError
from ..core.files import write_text
from . import clients, curves, why
from .pictures import FORMATS, Picture, style
from .reading import read_study
from .runs import Study
from .tables import tables


def all_pictures(study: Study, target: float = 0.9) -> Iterator[Picture]:
    """Every picture of a study; those of one method carry its name."""
    yield from curves.pictures(study, target)
    if len(study.methods) > 1:
        yield from (curves.difference_picture(study), curves.wins_picture(study))
    yield from clients.pictures(study)
    yield from why.common(study)
    for method in study.methods:
        yield from why.own(study, method)


def write_figures(
    folders: Sequence[str | Path],
    out: str | Path = "figures",
    formats: Sequence[str] = ("pdf",),
    baseline: str | None = None,
    target: float = 0.9,
    watch: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write every figure in some formats, and every table as CSV, Markdown and LaTeX; return the files.

    `watch` is told what is being drawn, `note` what was left out and why; the other arguments are those of
    `write_report`.

    >>> import idiolect
    >>> folder = getfixture("tmp_path")
    >>> _ = idiolect.compare("local, fedavg", clients=4, rounds=2, seeds=1, model="linear", out=folder / "a")
    >>> paths = write_figures([folder / "a"], folder / "figures", formats=["svg"])
    >>> sorted(path.name for path in paths if path.stem in ("curve-rounds", "leaderboard"))
    ['curve-rounds.svg', 'leaderboard.csv', 'leaderboard.md', 'leaderboard.tex']
    """
    if wrong := [each for each in formats if each not in FORMATS]:
        raise OptionError(f"there is no format {wrong[0]!r}; choose {', '.join(FORMATS)}")
    folder, written = Path(out), []
    with style():
        study = read_study(folders, baseline)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for picture in all_pictures(study, target):
                watch(picture.title)
                for suffix in formats:
                    path = folder / f"{picture.name}.{suffix}"
                    picture.save(path)
                    written.append(path)
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be written: {error.strerror}") from error
        for table in tables(study):
            for suffix, text in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
                written.append(folder / f"{table.name}.{suffix}")
                write_text(written[-1], text)
    for each in study.notes:
        note(each)
    return written
