"""Leave out cases that an engine takes, but is not asked where the user names none."""

from collections.abc import Mapping, Sequence

from refsd.golden.case import Case
from refsd.golden.engine import Engine, SparingEngine
from refsd.golden.wording import counted


def unusual(engines: Sequence[Engine], cases: Sequence[Case]) -> dict[str, set[str]]:
    """Return engine -> names of the cases that it takes, and is asked only where the user names them."""
    left_out = {
        engine.name: {case.name for case in cases if not engine.usual(case) and engine.refuses(case) is None}
        for engine in engines
        if isinstance(engine, SparingEngine)
    }
    return {name: names for name, names in left_out.items() if names}


def notes(left_out: Mapping[str, set[str]]) -> list[str]:
    """Say what was left out, a line for each engine."""
    return [
        f"{engine} also takes {counted(len(names), 'case')} that are judged only where they are named: "
        f"--cases '{min(names).partition('/')[0]}/*', --profile"
        for engine, names in left_out.items()
    ]
