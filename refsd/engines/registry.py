"""Every engine that refsd can judge: a folder here with an engine.py, loaded when asked for."""

import importlib
from pathlib import Path

from refsd.golden.engine import EngineSearch
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput

# What the command line calls an engine -> its folder. engine.py has find(path=None, **options) -> [EngineSearch].
FOLDERS = {
    page.parent.name.replace("_", "-"): page.parent.name
    for page in sorted(Path(__file__).parent.glob("*/engine.py"))
}
# Looked for when no engine is named. Without a path "exec" and "dump" have nothing to look for.
DEFAULT = tuple(name for name in FOLDERS if name not in ("exec", "dump"))


def find(argument: str, **options) -> list[EngineSearch]:
    """Look for "torch", "ggml:/path/to/libggml.so", "exec:./program".

    Raises BadInput for an unknown name. What is not there comes back as a EngineSearch that says why.
    """
    name, _, path = argument.partition(":")
    if name not in FOLDERS:
        known = ("refsd", *FOLDERS)
        meant, expected = did_you_mean(name, known), ", ".join(known)
        raise BadInput(f"unknown engine {argument!r}{meant}: expected {expected}, or one of them with :PATH")
    engine = importlib.import_module(f"refsd.engines.{FOLDERS[name]}.engine")
    return engine.find(**({"path": path} if path else {}), **options)
