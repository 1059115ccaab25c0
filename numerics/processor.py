"""Name the processor and those of its features by which an engine's arithmetic differs; count the usable cores."""

import functools
import os
import platform
from pathlib import Path

# As Linux names them; docs/processors.md says what differs.
CPU_FEATURES = (
    *("asimd", "sve", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
)
_OF_LLVM = {"asimd": "neon"}


def processor() -> str:
    """Return the processor's model, or the architecture if the system names none."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpuinfo() -> dict[str, str]:
    """Return the first processor's lines of /proc/cpuinfo; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().partition("\n\n")[0].splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return those of CPU_FEATURES that this machine has."""
    info = cpuinfo()
    return frozenset(CPU_FEATURES) & {*(info.get("flags") or info.get("Features") or _llvm_features()).split()}


def _llvm_features() -> str:
    """Return the same where the system lists none; LLVM writes avx512bf16 and amx-bf16."""
    import llvmlite.binding

    there = {name.replace("-", "") for name, on in llvmlite.binding.get_host_cpu_features().items() if on}
    return " ".join(name for name in CPU_FEATURES if _OF_LLVM.get(name, name.replace("_", "")) in there)


def usable_cores() -> int:
    """Return how many processes can compute at once: the cores within the limit of the container, at least 1."""
    return max(1, int(min(cores(), quota() or cores())))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota() -> float | None:
    """Return the cores' worth of time that the container allows; None without a limit."""
    limit = Path("/sys/fs/cgroup/cpu.max")
    parts = limit.read_text().split() if limit.exists() else []
    return int(parts[0]) / int(parts[1]) if len(parts) == 2 and parts[0].isdigit() else None
