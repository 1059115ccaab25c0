"""Find engines that ran too few cases: a run that judged almost nothing must not pass."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from refsd.golden import verdict
from refsd.golden.report import Result
from refsd.golden.wording import counted

# Engine -> the least number of cases of the whole corpus that it must run; with fewer, the run itself fails.
FLOORS = {
    "gguf-py": 23,
    "refsd-float32": 615,
    "ggml": 240,
    "ggml-flash": 16,
    "ggml-direct": 30,
    "torch": 355,
}


def shortages(
    groups: Mapping[str, Sequence[str]], results: Iterable[Result], minimum: int | None, whole: bool
) -> list[str]:
    """Return a line for each engine that ran too few cases.

    groups:  a requested engine ("ggml:/path") -> the engines found for it; one of them must have run `minimum`
             cases, or any at all if that is None
    whole:   the whole corpus was run, so that FLOORS applies if `minimum` is None
    """
    ran: Counter[str] = Counter(result.engine for result in results if result.status != verdict.REFUSED)
    lines = []
    for name, engines in groups.items():
        most = max((ran[engine] for engine in engines), default=0)
        least = 1 if minimum is None else minimum
        if most < least:
            lines.append(f"{name} ran {counted(most, 'case')}, expected at least {least}")
        for engine in engines:
            if whole and minimum is None and ran[engine] < FLOORS.get(engine, 0):
                lines.append(f"{engine} ran {counted(ran[engine], 'case')}, expected at least {FLOORS[engine]}")
    return lines
