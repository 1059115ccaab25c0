"""tinygrad: its ONNX front end, on the CPU; it calls clang, or what $CC names."""

import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

from refsd.engines.by_onnx import OnnxEngine, Settings, missing
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch, ModelFiles
from refsd.numerics.profiles import ONNX_F32

MISSING = "its CPU needs clang: install it, or name it in $CC"
_UNREAD = ("f8_e4m3", "f8_e5m2", "q4_0")


def find_clang() -> str | None:
    """Return the path of $CC if it is a clang, else of the plain or the newest clang; None without one."""
    named = os.environ.get("CC", "")
    candidates = (named if "clang" in named else "", "clang", *(f"clang-{n}" for n in range(22, 13, -1)))
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def execute(model: bytes, feeds: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    os.environ.update(DEV="CPU", CC=settings["compiler"])
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        answers = OnnxRunner(path)({name: Tensor(x) for name, x in feeds.items()})
        return {"y": answers["y"].numpy()}


def _refusal(case: Case) -> str | None:
    unread = next((recipe.type for recipe in case.inputs.values() if recipe.type in _UNREAD), None)
    if unread:
        return f"tinygrad's ONNX front end reads no {unread}"
    return "tinygrad has no Resize with antialias" if case.params.get("antialias") else None


def find(timeout: float = 300.0, model_files: ModelFiles | None = None, **_) -> list[EngineSearch]:
    """The installed tinygrad, if there is a clang."""
    if absent := missing("tinygrad", "tinygrad", "tinygrad"):
        return absent
    compiler = find_clang()
    if compiler is None:
        return [EngineSearch("tinygrad", None, MISSING)]
    how = {"settings": {"compiler": compiler}, "refusal": _refusal, "timeout": timeout, "model_files": model_files}
    engine = OnnxEngine("tinygrad", "tinygrad", version("tinygrad"), ONNX_F32, **how)
    return [EngineSearch("tinygrad", engine)]
