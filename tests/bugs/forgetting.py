"""Run the judge without some of its known bugs: what does it say of a bug that its lists do not hold?"""

import re
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from refsd.causes.model import place
from refsd.causes.trajectory import diagnose
from refsd.golden.operations import OPERATIONS
from refsd.judges import model
from refsd.stages import STAGES

# What the judge writes around the name of a known bug: the operation before it, or the only place that has it.
_AROUND = re.compile(r"^(\w+: |\w+ before it: )*|(, in .*)? alone$")


def listed() -> set[str]:
    """Return the names of all known bugs."""
    pages = [op.mutants for op in OPERATIONS.values()] + [stage.known for stage in STAGES.values()]
    return {bug.name for page in (*pages, model.MUTANTS, diagnose.MUTANTS) for bug in page}


def bare(cause: str, names: Set[str]) -> str:
    """Return the known bug that a cause names, without the words around it; "" if it names none."""
    return next((one for one in (cause, _AROUND.sub("", cause)) if one in names), "")


@contextmanager
def forgotten(names: Set[str]) -> Iterator[None]:
    """Take known bugs out of the lists."""

    def left(page):
        return tuple(bug for bug in page if bug.name not in names)

    with ExitStack() as stack:
        ops = {name: op._replace(mutants=left(op.mutants)) for name, op in OPERATIONS.items()}
        stages = {name: stage._replace(known=left(stage.known)) for name, stage in STAGES.items()}
        stack.enter_context(patch.dict(OPERATIONS, ops))
        stack.enter_context(patch.dict(STAGES, stages))
        for page in (model, place, diagnose):
            stack.enter_context(patch.object(page, "MUTANTS", left(page.MUTANTS)))
        yield
