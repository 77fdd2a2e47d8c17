"""Networks: the papers' models by name, built to fit the data."""

from .build import build, default_model
from .convnets import Cnn4, Cnn6, DigitModel, FemnistCnn, LeafCnn, LeNet5w
from .densenet import DenseNet121
from .networks import Described, LinearModel, Mlp, Network, Simulation, models
from .resnet import ResNet9, ResNet18, ResNet20
from .text import FastText, Lstm
from .unet import UNet
from .vgg import Vgg16

__all__ = [
    "Cnn4",
    "Cnn6",
    "DenseNet121",
    "Described",
    "DigitModel",
    "FastText",
    "FemnistCnn",
    "LeNet5w",
    "LeafCnn",
    "LinearModel",
    "Lstm",
    "Mlp",
    "Network",
    "ResNet9",
    "ResNet18",
    "ResNet20",
    "Simulation",
    "UNet",
    "Vgg16",
    "build",
    "default_model",
    "models",
]
