"""Assemble what judges engines: the judges of all kinds of case, over the recipe weights of this machine."""

import datetime
from collections.abc import Callable, Collection, Sequence

from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.conform import Runner
from refsd.golden.engine import Engine
from refsd.golden.judge import Answer
from refsd.golden.waivers import Waiver
from refsd.judges import judges
from refsd.weights.model_files import model_files


def runner(
    truths: Callable[[Case], Answer],
    waivers: Sequence[Waiver] = (),
    taps: str = "*",
    today: datetime.date | None = None,
) -> Runner:
    """Return a Runner that judges all kinds of case. Arguments: as in Runner."""
    return Runner(judges(model_files), truths, waivers, today, taps=taps)


def references(engines: Collection[Engine]) -> list[str]:
    """Return the names of the engines that are the reference itself, for Runner.itself."""
    return [engine.name for engine in engines if type(engine) is Reference]
