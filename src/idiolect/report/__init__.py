"""Everything that is shown: one page about any set of runs, figures and tables as files for a paper, pictures of a
partition, and what a terminal and other programs are told while runs go on."""

from .figures.partition import draw_partition, partition_text
from .figures.write import write_figures
from .folders import read_study
from .page import write_report
from .study import Run, Study

__all__ = ["Run", "Study", "draw_partition", "partition_text", "read_study", "write_figures", "write_report"]
