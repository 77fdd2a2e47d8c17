"""What all tests share: one thread each, since several run at a time."""

import torch

torch.set_num_threads(1)
