"""Name the processor."""

import platform
from pathlib import Path


def cpuinfo() -> dict[str, str]:
    """Return the first processor's lines of /proc/cpuinfo; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().partition("\n\n")[0].splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def processor() -> str:
    """Return the processor's model, or the architecture if the system names none."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()
