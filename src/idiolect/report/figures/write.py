"""The figures and tables of a study as files, ready for a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from ...core.errors import OptionError, RunFolderError
from ...core.files import write_text
from ..folders import read_study
from ..tables import study_tables
from .all import make_pictures
from .picture import FORMATS, style
from .similarity import similarity_picture


def write_figures(
    folders: Sequence[str | Path],
    out: str | Path = "figures",
    formats: Sequence[str] = ("pdf",),
    baseline: str | None = None,
    target: float = 0.9,
    watch: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    trust: bool = False,
    local_models: bool = False,
) -> list[Path]:
    """Write every figure in some formats, and every table as CSV, Markdown and LaTeX; return the files.

    `watch` is told what is being drawn, `note` what was left out and why; `local_models` adds the picture for which
    clients train two more rounds, see `layer_similarity`; the other arguments are those of `write_report`.

    >>> import idiolect
    >>> folder = getfixture("tmp_path")
    >>> _ = idiolect.compare("local, fedavg", clients=4, rounds=2, seeds=1, model="linear", out=folder / "a")
    >>> paths = write_figures([folder / "a"], folder / "figures", formats=["svg"])
    >>> sorted(path.name for path in paths if path.stem in ("curve-rounds", "leaderboard"))
    ['curve-rounds.svg', 'leaderboard.csv', 'leaderboard.md', 'leaderboard.tex']
    """
    if wrong := [ending for ending in formats if ending not in FORMATS]:
        raise OptionError(f"there is no format {wrong[0]!r}; choose {', '.join(FORMATS)}")
    folder, written = Path(out), []
    with style():
        study = read_study(folders, baseline, trust)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            local = similarity_picture(study, watch) if local_models else None
            for picture in (*chain.from_iterable(make_pictures(study, target).values()), *([local] if local else ())):
                watch(picture.title)
                for suffix in formats:
                    path = folder / f"{picture.name}.{suffix}"
                    picture.save(path)
                    written.append(path)
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be written: {error.strerror}") from error
        for table in study_tables(study):
            for suffix, text in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
                written.append(folder / f"{table.name}.{suffix}")
                write_text(written[-1], text)
    for sentence in study.notes:
        note(sentence)
    return written
