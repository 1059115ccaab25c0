"""The stages between prompt, files and picture that a case may ask for: one page per group of stages.

A page is a module in this folder that defines STAGES; pages are found automatically. A case asks for a stage as
`stage/NAME`; judges/stage.py answers and judges it.
"""

import copyreg
import importlib
import pkgutil

from refsd.stages.stage import OP, Stage


def _collect() -> dict[str, Stage]:
    stages: dict[str, Stage] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for stage in getattr(importlib.import_module(module.name), "STAGES", ()):
            if OP + stage.name in stages:
                raise ValueError(f"two pages declare {OP}{stage.name}")
            stages[OP + stage.name] = stage
    return stages


STAGES = _collect()


def page(op: str) -> Stage:
    return STAGES[op]


# A page holds functions, which cannot be pickled: its name is.
copyreg.pickle(Stage, lambda stage: (page, (OP + stage.name,)))
