"""Every engine that refsd can judge, by the name that the command line knows. A module is loaded when asked for."""

import importlib

from refsd.golden.engines import Found
from refsd.golden.errors import BadInput

# name -> module with find(path=None, **options) -> list[Found]
MODULES = {
    "gguf-py": "gguf_py",
    "torch": "torch",
    "ggml": "ggml",
    "sdcpp": "sdcpp",
    "exec": "exec",
}
# Looked for when no engine is named. "exec" has nothing to look for without a program.
DEFAULT = ("gguf-py", "torch", "ggml", "sdcpp")


def find(argument: str, **options) -> list[Found]:
    """Look for "torch", "ggml:/path/to/libggml.so", "exec:./program".

    Raises BadInput for an unknown name. What is not there comes back as a Found that says why.
    """
    name, _, path = argument.partition(":")
    if name not in MODULES:
        raise BadInput(
            f"unknown engine {argument!r}: expected refsd, {', '.join(MODULES)}, or one of them with :PATH"
        )
    module = importlib.import_module(f"refsd.golden.engines.{MODULES[name]}")
    return module.find(**({"path": path} if path else {}), **options)
