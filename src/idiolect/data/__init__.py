"""Data: sources by name, partitions, and the federation of clients that everything else works on."""

from .digits import Digits
from .federation import Client, Federation
from .idx import read_idx
from .label_skew import Dirichlet, Pathological, Shards
from .files import data_root
from .mnist import Mnist, MnistWriters
from . import cifar
from .partition import Assignment, Partition, divide, load_partition, partitions, save_partition
from .picture import draw_partition, partition_text
from .resolve import load
from .schemes import Feature, File, Group, Iid, Quantity
from .shift import Shift
from .sources import Pool, Source, sources
from .synthetic import FedFacSimulation, Rectangles, SimulationTruth, fedfac_simulation, fedlag_rectangles

__all__ = [
    "Assignment",
    "Client",
    "Digits",
    "Dirichlet",
    "Feature",
    "FedFacSimulation",
    "Federation",
    "File",
    "Group",
    "Iid",
    "Mnist",
    "MnistWriters",
    "Partition",
    "Pathological",
    "Pool",
    "Quantity",
    "Rectangles",
    "Shards",
    "Shift",
    "SimulationTruth",
    "Source",
    "data_root",
    "divide",
    "draw_partition",
    "fedfac_simulation",
    "fedlag_rectangles",
    "load",
    "load_partition",
    "partition_text",
    "partitions",
    "read_idx",
    "save_partition",
    "sources",
]
