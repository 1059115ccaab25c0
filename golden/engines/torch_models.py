"""The components of every family that torch has, by operation."""

from refsd.golden.engines import torch_denoisers, torch_pictures, torch_texts
from refsd.golden.engines.torch_model import TorchModel

MODELS: dict[str, TorchModel] = {**torch_denoisers.MODELS, **torch_pictures.MODELS, **torch_texts.MODELS}
