"""Data by name: published sets and simulations, one file per family."""

from .agnews import AgNews
from .base import Pool, Source, sources
from .brca import TcgaBrca
from .cifar import Cifar10, Cifar100, TinyImagenet, TinyImagenet100
from .digits import Digits, Mnist5k
from .digits5 import Digits5
from .eeg import Eeg
from .femnist import Femnist
from .folders import Camelyon17, DomainNet, ImageFolder, OfficeCaltech
from .huggingface import HuggingFace
from .mnist import EmnistBalanced, EmnistByClass, EmnistLetters, FashionMnist, Mnist, MnistWriters
from .retina import Retina
from .shakespeare import Shakespeare
from .synthetic import FedFacSimulation, Rectangles, SimulationTruth, fedfac_simulation, fedlag_rectangles
from .tables import Csv, Har, Heart, Npz, Parquet

__all__ = [
    "AgNews",
    "Camelyon17",
    "Cifar10",
    "Cifar100",
    "Csv",
    "Digits",
    "Digits5",
    "DomainNet",
    "Eeg",
    "EmnistBalanced",
    "EmnistByClass",
    "EmnistLetters",
    "FashionMnist",
    "FedFacSimulation",
    "Femnist",
    "Har",
    "Heart",
    "HuggingFace",
    "ImageFolder",
    "Mnist",
    "Mnist5k",
    "MnistWriters",
    "Npz",
    "OfficeCaltech",
    "Parquet",
    "Pool",
    "Rectangles",
    "Retina",
    "Shakespeare",
    "SimulationTruth",
    "Source",
    "TcgaBrca",
    "TinyImagenet",
    "TinyImagenet100",
    "fedfac_simulation",
    "fedlag_rectangles",
    "sources",
]
