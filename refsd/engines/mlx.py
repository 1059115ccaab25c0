"""The engine mlx: each operation by MLX's own functions, in a process of its own."""

import importlib.metadata
import importlib.util
import sys
from dataclasses import replace

from refsd.engines.arrays.array_engine import ArrayEngine
from refsd.engines.arrays.devices import Device, list_devices, starts
from refsd.engines.mlx.ops import LIBRARY
from refsd.engines.worker import Worker
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import how_to_install
from refsd.numerics.profiles import TORCH_BF16, TORCH_F16, TORCH_F32

# What follows the engine's name -> dtype and rounding.
_VARIANTS = {
    "": ("float32", replace(TORCH_F32, name="mlx-f32")),
    "-f16": ("float16", replace(TORCH_F16, name="mlx-f16")),
    "-bf16": ("bfloat16", replace(TORCH_BF16, name="mlx-bf16")),
}
_DEVICES = ("cpu", "metal", "cuda")


def find(path: str | None = None, device: str | None = None, timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed MLX. device: "cpu" (None means it), "metal" or "cuda"."""
    device = (device or "cpu").lower()
    name = "mlx" if device == "cpu" else f"mlx@{device}"
    if path is not None:
        return [EngineSearch(name, None, f"mlx has no {path!r}: expected mlx alone")]
    if importlib.util.find_spec("mlx") is None or importlib.util.find_spec("mlx.core") is None:
        return [EngineSearch(name, None, f"{how_to_install('mlx')}; on Linux it needs glibc 2.35")]
    if device not in _DEVICES:
        return [EngineSearch(name, None, f"no device {device!r}: expected one of {', '.join(_DEVICES)}")]
    worker = Worker(["-m", "refsd.engines.mlx.worker", device], timeout)
    if device != "cpu":
        why = starts(worker)
        if why:
            return [EngineSearch(name, None, why)]
    version = importlib.metadata.version("mlx") + f" {sys.platform}"
    found = []
    for end, (dtype, numerics) in _VARIANTS.items():
        variant = name.replace("mlx", f"mlx{end}")
        found.append(EngineSearch(variant, ArrayEngine(LIBRARY, variant, version, dtype, numerics, worker)))
    return found


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the installed mlx; none if it is not installed. path: ignored"""
    if importlib.util.find_spec("mlx") is None:
        return []
    return list_devices("refsd.engines.mlx.worker")
