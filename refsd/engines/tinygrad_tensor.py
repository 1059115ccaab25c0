"""The engine tinygrad-tensor: each operation by Tensor's own methods, in a process of its own that calls clang."""

import importlib.metadata
import importlib.util
from dataclasses import replace

from refsd.engines.arrays.array_engine import ArrayEngine
from refsd.engines.arrays.devices import Device, list_devices, starts
from refsd.engines.tinygrad.compiler import MISSING, find_clang
from refsd.engines.tinygrad_tensor.ops import LIBRARY
from refsd.engines.worker import Worker
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import how_to_install
from refsd.numerics.profiles import TORCH_F32

_F32 = replace(TORCH_F32, name="tinygrad-f32")


def find(path: str | None = None, device: str | None = None, timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed tinygrad. device: as tinygrad's DEV names it, "CPU" (None means it), "CUDA", "METAL", ..."""
    device = (device or "cpu").upper()
    name = "tinygrad-tensor" if device == "CPU" else f"tinygrad-tensor@{device.lower()}"
    if path is not None:
        return [EngineSearch(name, None, f"tinygrad has no {path!r}: expected tinygrad-tensor alone")]
    if importlib.util.find_spec("tinygrad") is None:
        return [EngineSearch(name, None, f"{how_to_install('tinygrad')}; on the CPU it needs clang")]
    compiler = find_clang()
    if device == "CPU" and compiler is None:
        return [EngineSearch(name, None, MISSING)]
    worker = Worker(["-m", "refsd.engines.tinygrad_tensor.worker", device, compiler or ""], timeout)
    if device != "CPU":
        why = starts(worker)
        if why:
            return [EngineSearch(name, None, why)]
    version = importlib.metadata.version("tinygrad")
    return [EngineSearch(name, ArrayEngine(LIBRARY, name, version, "float32", _F32, worker))]


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the installed tinygrad; none if it is not installed. path: ignored"""
    if importlib.util.find_spec("tinygrad") is None:
        return []
    return list_devices("refsd.engines.tinygrad_tensor.worker", find_clang() or "")
