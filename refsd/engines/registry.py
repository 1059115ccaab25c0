"""Find engines by name. Each is a folder here with an engine.py, which is imported when first asked for."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from refsd.golden.engine import EngineSearch
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput

# engine name on the command line -> its folder. engine.py defines find(path=None, **options) -> [EngineSearch].
FOLDERS = {
    page.parent.name.replace("_", "-"): page.parent.name
    for page in sorted(Path(__file__).parent.glob("*/engine.py"))
}
# Engines whose find takes a device. Their engine.py also defines devices(path=None), which lists those that exist.
WITH_DEVICES = ("ggml", "jax", "mlx", "onnxruntime", "sdcpp", "tinygrad-tensor", "torch")
# Engines that need a path or an address -> how to name them.
NEED_A_PATH = {
    "exec": "exec:PROGRAM",
    "dump": "dump:FOLDER",
    "a1111": "a1111:http://127.0.0.1:7860",
    "comfyui": "comfyui:http://127.0.0.1:8188",
}
# The others are looked for if the user names none.
DEFAULT = tuple(name for name in FOLDERS if name not in NEED_A_PATH)


class Argument(NamedTuple):
    """An engine as the command line calls it: NAME, NAME:PATH, NAME@DEVICE or NAME:PATH@DEVICE.

    name:   "torch", or one of the engines that torch gives: "torch-bf16"
    kind:   the folder's engine: "torch"; the name itself if it is unknown
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
        kind = name if name in FOLDERS else next((f for f in FOLDERS if name.startswith(f"{f}-")), name)
        if kind in WITH_DEVICES and not Path(path).exists():
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
    if given.kind not in FOLDERS:
        known = ("refsd", *FOLDERS)
        meant, expected = did_you_mean(given.name, known), ", ".join(known)
        raise BadInput(f"unknown engine {argument!r}{meant}: expected {expected}, or one of them with :PATH")
    if given.device and given.kind not in WITH_DEVICES:
        raise BadInput(f"{argument}: {given.kind} has no devices to choose from; {', '.join(WITH_DEVICES)} have")
    wanted = {"path": given.path, "device": given.device}
    found = load(given.kind).find(**{name: value for name, value in wanted.items() if value}, **options)
    chosen = [one for one in found if one.engine is None or given.name in (given.kind, one.name.partition("@")[0])]
    if not chosen:
        raise BadInput(f"{argument}: {given.kind} gives {', '.join(one.name for one in found)}")
    return chosen


def load(kind: str) -> ModuleType:
    """Import the engine.py of an engine."""
    return importlib.import_module(f"refsd.engines.{FOLDERS[kind]}.engine")
