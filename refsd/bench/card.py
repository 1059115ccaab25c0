"""Write a machine's card: what it is, its limits, and each contender's times, as a page in Markdown."""

import datetime

import llvmlite.binding

from refsd import __version__
from refsd.bench import Entry, best
from refsd.numerics.machine import memory
from refsd.numerics.printable import printable
from refsd.numerics.processor import processor

_WIDE = ("neon", "sve", "avx2", "fma", "avx512f", "avx512bf16", "avx512fp16", "amx-tile")


def _instructions() -> str:
    features = llvmlite.binding.get_host_cpu_features()
    return ", ".join(name for name in _WIDE if features.get(name)) or "none of " + ", ".join(_WIDE)


def machine_card(entries: dict[str, Entry], avx2: bool) -> str:
    """Return the card as Markdown; avx2: the contenders were kept from AVX-512."""
    about = {
        "processor": processor(),
        "vector instructions": "AVX2 (AVX-512 switched off)" if avx2 else _instructions(),
        "memory": f"{memory() / 2**30:.0f} GiB",
        "measured": f"{datetime.date.today().isoformat()}, refsd {__version__}",
    }
    if limit := entries.get("limit"):
        about |= limit.setup
    lines = ["# refsd bench: this machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {printable(str(value))} |" for name, value in about.items()]
    for row, seconds in best(entries).items():
        own = seconds.get("refsd")
        lines += [
            "",
            f"## {row}",
            "",
            "| | best time | ratio to refsd's | peak memory | |",
            "|---|---|---|---|---|",
        ]
        for name, entry in entries.items():
            if name not in seconds:
                lines.append(f"| {name} | | | | {printable(entry.absent)} |")
                continue
            ratio = f"{seconds[name] / own:.2f}" if own else ""
            peak = "" if name == "limit" else f"{entry.peak / 2**30:.2f} GiB"
            version = "" if name == "limit" else entry.setup.get("version", "")
            lines.append(f"| {name} | {seconds[name]:.3g} s | {ratio} | {peak} | {printable(str(version))} |")
    return "\n".join([*lines, ""])
