"""What this machine's processor can do, as far as the choice of kernels and of the precision depends on it."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def has_avx() -> bool:
    """Whether the processor is an x86 one with AVX2 or AVX-512."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def has_bf16(device: str) -> bool:
    """Whether a device computes in bf16 by itself; processors without such instructions take many times longer."""
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_numba() -> bool:
    """Whether kernels are compiled."""
    return find_spec("numba") is not None
