"""Find engines by name. An engine is one file of this folder, or one folder with an engine.py.

Its file defines, and is imported when first asked for:

    find(path=None, **options) -> [EngineSearch]
    devices(path=None)   if it has devices to choose from: lists those that exist; find then takes device="..."
    EXAMPLE              if it needs a path or an address: how to name the engine, as "exec:PROGRAM"
"""

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from refsd import engines
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput

_FIND = re.compile(rb"^def find\(", re.MULTILINE)


@cache
def modules() -> dict[str, str]:
    """Return the engines' names on the command line -> the modules that define `find`. Imports none of them."""
    found = {}
    for folder in map(Path, engines.__path__):
        for page in (*folder.glob("*.py"), *folder.glob("*/engine.py")):
            if page != Path(__file__) and _FIND.search(page.read_bytes()):
                parts = page.relative_to(folder).with_suffix("").parts
                found[parts[0].replace("_", "-")] = ".".join((engines.__name__, *parts))
    return dict(sorted(found.items()))


def example(kind: str) -> str:
    """Return how to name an engine that needs a path or an address; "" if it needs none."""
    return getattr(load(kind), "EXAMPLE", "")


def has_devices(kind: str) -> bool:
    """Return whether an engine has devices to choose from."""
    return hasattr(load(kind), "devices")


def default() -> tuple[str, ...]:
    """Return the engines that are looked for if the user names none: those that need no path."""
    return tuple(kind for kind in modules() if not example(kind))


class Argument(NamedTuple):
    """An engine as the command line calls it: NAME, NAME:PATH, NAME@DEVICE or NAME:PATH@DEVICE.

    name:   "torch", or one of the engines that torch gives: "torch-bf16"
    kind:   the file's engine: "torch"; the name itself if it is unknown
    path:   where it is; torch: its memory layout; "" if not given
    device: what computes, as the engine itself calls it: "Vulkan0", "cuda"; "" if not given
    """

    name: str
    kind: str
    path: str
    device: str

    @classmethod
    def of(cls, argument: str) -> "Argument":
        """Parse an argument. A path may contain "@": where it exists as a whole, it has no device."""
        name, _, path = argument.partition(":")
        device = ""
        if "@" in name:  # a device may contain ":", as cuda:1
            path, (name, _, device) = "", argument.partition("@")
        kind = name if name in modules() else next((f for f in modules() if name.startswith(f"{f}-")), name)
        if kind in modules() and has_devices(kind) and not Path(path).exists():
            before, at, after = path.rpartition("@")
            if at and after and "/" not in after:
                path, device = before, after
        return cls(name, kind, path, device)


def find(argument: str, **options) -> list[EngineSearch]:
    """Look for engines: "torch" finds all of torch's, "torch-bf16" the one of that name; "ggml:LIBRARY@Vulkan0".

    An engine that is not installed comes back as an EngineSearch with the reason. Raises BadInput for an unknown
    name, and for a device of an engine that has none.
    """
    given = Argument.of(argument)
    if given.kind not in modules():
        known = ("refsd", *modules())
        meant, expected = did_you_mean(given.name, known), ", ".join(known)
        if Path(argument.partition(" ")[0]).is_file():
            meant = f' (did you mean "exec:{argument}"?)'
        if "*" in argument:
            meant = f" (a glob of cases? Each needs its flag: --cases '{argument}')"
        raise BadInput(f"unknown engine {argument!r}{meant}: expected {expected}, or one of them with :PATH")
    if given.device and not has_devices(given.kind):
        others = ", ".join(kind for kind in modules() if has_devices(kind))
        raise BadInput(f"{argument}: {given.kind} has no devices to choose from; {others} have")
    wanted = {"path": given.path, "device": given.device}
    found = load(given.kind).find(**{name: value for name, value in wanted.items() if value}, **options)
    if given.name == given.kind:
        return [one for one in found if not one.only_by_name]
    chosen = [one for one in found if one.engine is None or given.name == one.name.partition("@")[0]]
    if not chosen:
        raise BadInput(f"{argument}: {given.kind} gives {', '.join(one.name for one in found)}")
    return chosen


def load(kind: str) -> ModuleType:
    """Import the module of an engine."""
    return importlib.import_module(modules()[kind])
