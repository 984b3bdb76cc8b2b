"""The papers' networks by name, and adapters to timm, torchvision, transformers and the user's own."""

from flipguard.models.build import MODELS, build_model, model_names
from flipguard.models.classifier import Classifier
from flipguard.models.onnx import OnnxNetwork
from flipguard.models.split import SplitClassifier, check_split, split

__all__ = [
    "MODELS",
    "Classifier",
    "OnnxNetwork",
    "SplitClassifier",
    "build_model",
    "check_split",
    "model_names",
    "split",
]
