"""An arithmetic by the names that the command line knows."""

from collections.abc import Iterable

from refsd.golden.wording import did_you_mean
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import PROFILES


def named(numerics: str, deviations: Iterable[str] = ()) -> Arithmetic:
    """Return the arithmetic for names from the command line. Raises BadInput for an unknown name."""
    if numerics not in PROFILES:
        meant = did_you_mean(numerics, PROFILES)
        raise BadInput(f"--numerics {numerics}{meant}: expected one of {', '.join(PROFILES)}")
    for name in deviations:
        if name not in DEVIATIONS:
            meant = did_you_mean(name, DEVIATIONS)
            raise BadInput(f"--deviation {name}{meant}: expected one of {', '.join(DEVIATIONS)}")
    return Arithmetic(PROFILES[numerics], [DEVIATIONS[name] for name in deviations])
