"""Find engines by name. Each is a folder here with an engine.py, which is imported when first asked for."""

import importlib
from pathlib import Path

from refsd.golden.engine import EngineSearch
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput

# engine name on the command line -> its folder. engine.py defines find(path=None, **options) -> [EngineSearch].
FOLDERS = {
    page.parent.name.replace("_", "-"): page.parent.name
    for page in sorted(Path(__file__).parent.glob("*/engine.py"))
}
# Engines that need a path or an address; the others are looked for if the user names none.
_ADDRESSED = ("exec", "dump", "a1111", "comfyui")
DEFAULT = tuple(name for name in FOLDERS if name not in _ADDRESSED)


def find(argument: str, **options) -> list[EngineSearch]:
    """Look for an engine: "torch", "ggml:/path/to/libggml.so", "exec:./program", "comfyui:http://127.0.0.1:8188".

    An engine that is not installed comes back as an EngineSearch with the reason. Raises BadInput for an unknown
    name.
    """
    name, _, path = argument.partition(":")
    if name not in FOLDERS:
        known = ("refsd", *FOLDERS)
        meant, expected = did_you_mean(name, known), ", ".join(known)
        raise BadInput(f"unknown engine {argument!r}{meant}: expected {expected}, or one of them with :PATH")
    engine = importlib.import_module(f"refsd.engines.{FOLDERS[name]}.engine")
    return engine.find(**({"path": path} if path else {}), **options)
