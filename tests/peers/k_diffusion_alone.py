"""k-diffusion's sampling.py and external.py, without the training code that its package imports.

`import k_diffusion` pulls in kornia, wandb, clean-fid, torchvision, ... The two files need of all
that nothing which the samplers under test call: their places are taken by empty modules.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

UNUSED = ("torchvision", "torchvision.transforms", "torchdiffeq")


def load(name: str) -> ModuleType:
    """k_diffusion.<name>"""
    if "k_diffusion" not in sys.modules:
        spec = importlib.util.find_spec("k_diffusion")
        assert spec is not None and spec.origin, "pip install --no-deps k-diffusion"
        package = ModuleType("k_diffusion")
        package.__path__ = [str(Path(spec.origin).parent)]
        sys.modules["k_diffusion"] = package
    before = set(sys.modules)
    sys.modules.update({unused: mock.MagicMock() for unused in UNUSED if unused not in sys.modules})
    try:
        return importlib.import_module(f"k_diffusion.{name}")
    finally:
        for unused in set(UNUSED) - before:
            del sys.modules[unused]
