"""Explain an answer by known deviations that the engine does not declare: find the fewest that suffice."""

from collections.abc import Callable

from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS, Deviation
from refsd.numerics.profiles import Numerics

Deviations = tuple[Deviation, ...]


class Noting(Arithmetic):
    """Arithmetic that notes which known deviations would change a parameter of its operations.

    met: these deviations, in the order of the operations
    """

    def __init__(self, numerics: Numerics):
        super().__init__(numerics)
        self._met: dict[str, Deviation] = {}

    @property
    def met(self) -> Deviations:
        return tuple(self._met.values())

    def parameter(self, op: str, name: str, value):
        for deviation in DEVIATIONS.values():
            if deviation.op == op and deviation.sets.get(name, value) != value:
                self._met[deviation.name] = deviation
        return super().parameter(op, name, value)


def explaining(met: Deviations, explains: Callable[[Deviations], bool]) -> list[str]:
    """Return the causes in words: each deviation that alone explains the answer, else a smallest set that does.

    met:      deviations that make a difference to the case
    explains: deviations -> True if the reference with them agrees with the engine
    """
    alone = [deviation for deviation in met if explains((deviation,))]
    if alone or len(met) < 2 or not explains(met):
        return [_in_words((deviation,)) for deviation in alone]
    return [_in_words(_fewest(met, explains))]


def _fewest(all_of_them: Deviations, explains: Callable[[Deviations], bool]) -> Deviations:
    needed = all_of_them
    for deviation in all_of_them:
        rest = tuple(other for other in needed if other is not deviation)
        if len(rest) > 1 and explains(rest):
            needed = rest
    return needed


def _in_words(deviations: Deviations) -> str:
    return ", and ".join(f"{deviation.what} ({deviation.name})" for deviation in deviations)
