"""Data: sources by name, partitions, and the federation of clients that everything else works on."""

from .archive import extract
from .cifar import Cifar10, Cifar100, TinyImagenet, TinyImagenet100
from .digits import Digits
from .digits5 import Digits5
from .federation import Client, Federation
from .fetch import Progress, fetch, fetchable
from .files import check_sum, data_root
from .folders import Camelyon17, DomainNet, ImageFolder, OfficeCaltech
from .huggingface import HuggingFace
from .idx import read_idx
from .label_skew import Dirichlet, Pathological, Shards
from .leaf import Femnist
from .mnist import EmnistBalanced, EmnistByClass, EmnistLetters, FashionMnist, Mnist, MnistWriters
from .partition import Assignment, Partition, divide, load_partition, partitions, save_partition
from .picture import draw_partition, partition_text
from .resolve import load
from .retina import Retina
from .schemes import Feature, File, Group, Iid, Quantity
from .shakespeare import Shakespeare
from .shift import Shift
from .sources import Pool, Source, sources
from .synthetic import FedFacSimulation, Rectangles, SimulationTruth, fedfac_simulation, fedlag_rectangles
from .tables import Csv, Har, Heart, Npz
from .words import AgNews

__all__ = [
    "AgNews",
    "Assignment",
    "Camelyon17",
    "Cifar10",
    "Cifar100",
    "Client",
    "Csv",
    "Digits",
    "Digits5",
    "Dirichlet",
    "DomainNet",
    "EmnistBalanced",
    "EmnistByClass",
    "EmnistLetters",
    "FashionMnist",
    "Feature",
    "FedFacSimulation",
    "Federation",
    "Femnist",
    "File",
    "Group",
    "Har",
    "Heart",
    "HuggingFace",
    "Iid",
    "ImageFolder",
    "Mnist",
    "MnistWriters",
    "Npz",
    "OfficeCaltech",
    "Partition",
    "Pathological",
    "Pool",
    "Progress",
    "Quantity",
    "Rectangles",
    "Retina",
    "Shakespeare",
    "Shards",
    "Shift",
    "SimulationTruth",
    "Source",
    "TinyImagenet",
    "TinyImagenet100",
    "check_sum",
    "data_root",
    "divide",
    "draw_partition",
    "extract",
    "fedfac_simulation",
    "fedlag_rectangles",
    "fetch",
    "fetchable",
    "load",
    "load_partition",
    "partition_text",
    "partitions",
    "read_idx",
    "save_partition",
    "sources",
]
