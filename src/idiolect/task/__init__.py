"""What is learned: a network as a pure function, its loss, metrics, optimisers and schedules. Nothing here knows of
clients or rounds."""

from .metrics import Metric
from .network import Net, Output
from .task import Batch, Scored, Task, Unit

__all__ = ["Batch", "Metric", "Net", "Output", "Scored", "Task", "Unit"]
