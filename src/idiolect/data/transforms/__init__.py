"""Transforms of inputs: by name, by code, or as objects; random ones for passes over training samples alone."""

from .base import OwnTransform, Transform, Transforms, build_transforms, transforms
from .images import Crop, Erase, Flip, Jitter, Normalize, Resize, Rotate

__all__ = [
    "Crop",
    "Erase",
    "Flip",
    "Jitter",
    "Normalize",
    "OwnTransform",
    "Resize",
    "Rotate",
    "Transform",
    "Transforms",
    "build_transforms",
    "transforms",
]
