"""The cases, small tables in a file a family. CASES holds them all by name."""

import fnmatch
import importlib

from refsd.golden.case import Case
from refsd.golden.errors import BadInput

# Names that begin so are chosen only by a glob that begins so: whole models of full size, and models that no
# engine here answers but the reference.
FULL, LONE = "full/", "lone/"
ASKED_FOR = (FULL, LONE)
# Each module has a list CASES.
_MODULES = (
    "matmul",
    "blocks",
    "conv",
    "norms",
    "activations",
    "attention",
    "positions",
    "resampling",
    "layout",
    "adapters",
    "trajectories",
    "sd15",
    "families",
    "texts",
    "models",
    "unets",
)


def _collect() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for module in _MODULES:
        for case in importlib.import_module(f"refsd.golden.cases.{module}").CASES:
            if case.name in cases:
                raise ValueError(f"two cases are called {case.name}")
            cases[case.name] = case
    return cases


CASES = _collect()


def select(pattern: str = "*") -> list[Case]:
    """The cases whose names match a glob ("conv2d/*", "*q4_k*"). Raises BadInput if there is none.

    Full-size models ("full/...") and models without a peer ("lone/...") are chosen only by a glob that begins so.
    """
    asked = [prefix for prefix in ASKED_FOR if pattern.startswith(prefix)]
    hidden = tuple(prefix for prefix in ASKED_FOR if prefix not in asked)
    chosen = [c for name, c in CASES.items() if fnmatch.fnmatchcase(name, pattern) and not name.startswith(hidden)]
    if not chosen:
        raise BadInput(f"no case matches {pattern!r}: `refsd golden list` shows all {len(CASES)}")
    return chosen
