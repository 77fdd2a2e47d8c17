"""Reports: one page about any set of runs, and its figures and tables as files for a paper. Everything is read from
run folders; nothing is run."""

from .files import write_figures
from .page import write_report
from .reading import read_study
from .runs import Run, Study

__all__ = ["Run", "Study", "read_study", "write_figures", "write_report"]
