"""Data: the federation of clients that everything else works on, from a user's own data or from sources and partitions
by name."""

from .client import Client
from .federation import Federation
from .formats.download import Progress, fetch, fetchable
from .formats.files import check_sum, data_root
from .loading import load
from .partitions import Partition, Shift, divide, load_partition, save_partition
from .sources import Pool, Source
from .tables import table

__all__ = [
    "Client",
    "Federation",
    "Partition",
    "Pool",
    "Progress",
    "Shift",
    "Source",
    "check_sum",
    "data_root",
    "divide",
    "fetch",
    "fetchable",
    "load",
    "load_partition",
    "save_partition",
    "table",
]
