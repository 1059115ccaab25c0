"""The cases, small tables in a file a family. CASES holds them all by name."""

import fnmatch
import importlib

from refsd.golden.case import Case
from refsd.golden.errors import BadInput

FULL = "full/"
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

    Full-size models ("full/...") are chosen only by a glob that begins so.
    """
    full = pattern.startswith(FULL)
    chosen = [
        c for name, c in CASES.items() if fnmatch.fnmatchcase(name, pattern) and name.startswith(FULL) <= full
    ]
    if not chosen:
        raise BadInput(f"no case matches {pattern!r}: `refsd golden list` shows all {len(CASES)}")
    return chosen
