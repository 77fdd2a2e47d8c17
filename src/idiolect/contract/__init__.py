"""What an author of a method reads, and nothing else: `Method` (start there), the slots that it declares, the contexts
that its functions get, the phases that it trains in. What methods share is in `contract.parts`."""

from ..core import tree
from ..core.errors import ComposeError, ModelError, OptionError
from ..core.options import option
from ..core.sums import Sums
from ..core.tree import Slots, Tree
from ..task.network import Output
from ..task.task import Batch, Scored, Task
from .about import About, Needs, Paper, Refuses
from .context import ClientContext, RoundContext, ServerContext
from .gradients import Grad
from .messages import Download, Upload, Uploads
from .method import Method, Wrapper, default_inner, has_one_model, methods, predicts_its_own_way, register, unwrap
from .phase import Phase
from .slots import (
    Init,
    Slot,
    buffers_of,
    initial_buffers,
    just_trained,
    keep_model,
    mask_of,
    model_in,
    nothing,
    private,
    private_of,
    scratch,
    shared,
    slot_of,
    zero,
    zeros_like_params,
    zeros_like_shared,
)
from .training import Training

__all__ = [
    "About",
    "Batch",
    "ClientContext",
    "ComposeError",
    "Download",
    "Grad",
    "Init",
    "Method",
    "ModelError",
    "Needs",
    "OptionError",
    "Output",
    "Paper",
    "Phase",
    "Refuses",
    "RoundContext",
    "Scored",
    "ServerContext",
    "Slot",
    "Slots",
    "Sums",
    "Task",
    "Training",
    "Tree",
    "Upload",
    "Uploads",
    "Wrapper",
    "buffers_of",
    "default_inner",
    "has_one_model",
    "initial_buffers",
    "just_trained",
    "keep_model",
    "mask_of",
    "methods",
    "model_in",
    "nothing",
    "option",
    "predicts_its_own_way",
    "private",
    "private_of",
    "register",
    "scratch",
    "shared",
    "slot_of",
    "tree",
    "unwrap",
    "zero",
    "zeros_like_params",
    "zeros_like_shared",
]  # fmt: skip
