"""List the devices that torch sees, and check that an answer was computed on the requested one."""

import importlib
import importlib.util

from refsd.engines.arrays.devices import Device
from refsd.golden.engine import EngineFailure


def devices(path: str | None = None) -> list[Device]:
    """List the devices of the installed torch; none if it is not installed. path: ignored"""
    if importlib.util.find_spec("torch") is None:
        return []
    torch = importlib.import_module("torch")
    found = [Device("cpu", torch.backends.cpu.get_cpu_capability())]
    for kind in ("cuda", "xpu"):
        there = getattr(torch, kind, None)
        names = [there.get_device_name(n) for n in range(there.device_count())] if there else []
        found += [Device(kind if n == 0 else f"{kind}:{n}", name) for n, name in enumerate(names)]
    if torch.backends.mps.is_available():
        found.append(Device("mps", "Apple GPU"))
    return found


def check_device(y, wanted: str) -> None:
    """Raise EngineFailure if a tensor is not on a device of the wanted type."""
    if y.device.type != wanted.partition(":")[0]:
        raise EngineFailure(f"torch was asked on {wanted}, and the answer is on {y.device}")
