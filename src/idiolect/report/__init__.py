"""Everything that is shown: one page about any set of runs, figures and tables as files for a paper, pictures of a
partition, and what a terminal and other programs are told while runs go on."""

from .figures.conflicts import write_conflicts
from .figures.neurons import feature_map_picture, layer_outputs, neuron_pictures, neuron_table
from .figures.partition import draw_partition, partition_text
from .figures.similarity import layer_similarity
from .figures.write import write_figures
from .folders import read_study
from .page import write_report
from .papers import PaperTable, paper_table
from .study import Run, Study

__all__ = [
    "PaperTable",
    "Run",
    "Study",
    "draw_partition",
    "feature_map_picture",
    "layer_outputs",
    "layer_similarity",
    "neuron_pictures",
    "neuron_table",
    "paper_table",
    "partition_text",
    "read_study",
    "write_conflicts",
    "write_figures",
    "write_report",
]
