"""spandrel's RRDBNet, the original's of 2018 as most tools run it, without the rest of spandrel.

`import spandrel` pulls in every architecture that it knows, and torchvision with them.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def load_esrgan(state: dict[str, Any]) -> Any:
    """A file's tensors, in any layout -> spandrel's descriptor: its `model` is the RRDBNet."""
    if "spandrel" not in sys.modules:
        spec = importlib.util.find_spec("spandrel")
        assert spec is not None and spec.origin, "pip install --no-deps spandrel"
        root = Path(spec.origin).parent
        for name, folder in (("spandrel", root), ("spandrel.architectures", root / "architectures")):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
            sys.modules[name].__spec__ = ModuleSpec(name, None, is_package=True)
    return importlib.import_module("spandrel.architectures.ESRGAN").ESRGANArch().load(state)
