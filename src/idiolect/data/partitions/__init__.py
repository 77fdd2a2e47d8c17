"""How the data of one pool are dealt to clients, by name."""

from .base import Assignment, Partition, divide, load_partition, partitions, save_partition
from .label_skew import Dirichlet, Pathological, Shards
from .schemes import Feature, File, Group, Iid, Quantity
from .shift import Shift

__all__ = [
    "Assignment",
    "Dirichlet",
    "Feature",
    "File",
    "Group",
    "Iid",
    "Partition",
    "Pathological",
    "Quantity",
    "Shards",
    "Shift",
    "divide",
    "load_partition",
    "partitions",
    "save_partition",
]
