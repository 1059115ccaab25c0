"""The engine jax: each operation by JAX's own functions, jitted, in a process of its own."""

import importlib.metadata
import importlib.util
from dataclasses import replace

from refsd.engines.arrays.array_engine import ArrayEngine
from refsd.engines.arrays.devices import Device, list_devices, starts
from refsd.engines.jax.ops import LIBRARY
from refsd.engines.worker import Worker
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import how_to_install
from refsd.numerics.profiles import TORCH_BF16, TORCH_BF16_PRODUCTS, TORCH_F16, TORCH_F32, TORCH_TF32

_F32 = replace(TORCH_F32, name="jax-f32")
# What follows the engine's name -> dtype and rounding: XLA's CPU code computes in float32 and rounds results.
_VARIANTS = {
    "": ("float32", _F32),
    "-f16": ("float16", replace(TORCH_F16, name="jax-f16")),
    "-bf16": ("bfloat16", replace(TORCH_BF16, name="jax-bf16")),
}
# Devices that round the factors of float32 products unless the precision is "highest": jax.lax.Precision.
_SHORTENED = {
    "cuda": replace(TORCH_TF32, name="jax-tf32"),
    "tpu": replace(TORCH_BF16_PRODUCTS, name="jax-bf16-products"),
}
_DEVICES = ("cpu", "cuda", "tpu", "metal")
_PRECISIONS = ("default", "highest")


def find(path: str | None = None, device: str | None = None, timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed JAX. path: the precision of float32 products, "default" (None means it) or "highest"."""
    precision, device = path or "default", (device or "cpu").lower()
    name = "jax" + ("" if precision == "default" else f"-{precision}") + ("" if device == "cpu" else f"@{device}")
    if importlib.util.find_spec("jax") is None:
        return [EngineSearch(name, None, how_to_install("jax"))]
    if precision not in _PRECISIONS:
        return [EngineSearch(name, None, f"no precision {path!r}: expected jax:default or jax:highest")]
    if device not in _DEVICES:
        return [EngineSearch(name, None, f"no device {device!r}: expected one of {', '.join(_DEVICES)}")]
    worker = Worker(["-m", "refsd.engines.jax.worker", device, precision], timeout)
    if device != "cpu":
        why = starts(worker)
        if why:
            return [EngineSearch(name, None, why)]
    variants = _VARIANTS if precision == "default" else {"": _VARIANTS[""]}
    version = importlib.metadata.version("jax")
    found = []
    for end, (dtype, numerics) in variants.items():
        if dtype == "float32" and precision == "default":
            numerics = _SHORTENED.get(device, numerics)
        variant = name.replace("jax", f"jax{end}", 1)
        found.append(EngineSearch(variant, ArrayEngine(LIBRARY, variant, version, dtype, numerics, worker)))
    return found


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the installed jax; none if it is not installed. path: ignored"""
    if importlib.util.find_spec("jax") is None:
        return []
    return list_devices("refsd.engines.jax.worker", "default")
