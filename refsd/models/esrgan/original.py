"""Spandrel's ESRGAN."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from refsd.golden.engine import EngineFailure
from refsd.networks.original import Original


def _load(path: Path, dtype):
    """Load spandrel's RRDBNet without importing the rest of spandrel, which needs torchvision."""
    from safetensors.torch import load_file

    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "spandrel"}
    try:
        if not before:
            spec = importlib.util.find_spec("spandrel")
            if spec is None or spec.origin is None:
                raise EngineFailure("spandrel is not installed: pip install --no-deps spandrel")
            root = Path(spec.origin).parent
            for name, folder in (("spandrel", root), ("spandrel.architectures", root / "architectures")):
                sys.modules[name] = ModuleType(name)
                sys.modules[name].__path__ = [str(folder)]
        architecture = importlib.import_module("spandrel.architectures.ESRGAN").ESRGANArch()
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "spandrel" and name not in before]:
            del sys.modules[name]
    return architecture.load(load_file(path)).model.to(dtype)


def _run(model, x, params):
    return {"out": model(x["x"])}


ORIGINALS = {
    "esrgan": Original("spandrel", "esrgan", _load, _run, layout="ldm"),
}
