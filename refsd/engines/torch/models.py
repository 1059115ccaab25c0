"""All components that the torch engine can run, by operation."""

from refsd.engines.torch import denoisers as torch_denoisers
from refsd.engines.torch import pictures as torch_pictures
from refsd.engines.torch import texts as torch_texts
from refsd.engines.torch.model import TorchModel

MODELS: dict[str, TorchModel] = {**torch_denoisers.MODELS, **torch_pictures.MODELS, **torch_texts.MODELS}
