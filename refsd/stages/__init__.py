"""The stages between prompt, files and picture that a case may ask for: one page per group of stages.

A page is a module in this folder that defines STAGES; pages are found automatically. A case asks for a stage as
`stage/NAME`; judges/stage.py answers and judges it.
"""

import copyreg

from refsd.golden.pages import by_name
from refsd.stages.stage import OP, Stage

STAGES: dict[str, Stage] = {OP + name: stage for name, stage in by_name(__name__, "STAGES").items()}


def page(op: str) -> Stage:
    return STAGES[op]


# A page holds functions, which cannot be pickled: its name is.
copyreg.pickle(Stage, lambda stage: (page, (OP + stage.name,)))
