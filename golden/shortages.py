"""Find engines that ran too few cases: a run that judged almost nothing must not pass."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from refsd.golden import verdict
from refsd.golden.engine import DeclaringEngine, Engine
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


def unjudged(
    engines: Iterable[Engine], results: Sequence[Result], whole: Collection[str], named: Collection[str]
) -> tuple[list[str], list[str]]:
    """Find operations of which an engine refused every case. -> lines that fail the run, lines that only tell it

    whole: operations all of whose cases were asked: a declared one without a judged case fails the run
    named: operations that the user named
    """
    failing, telling = [], []
    for engine in engines:
        declared = engine.declared if isinstance(engine, DeclaringEngine) else ()
        reasons: dict[str, list[str]] = {}
        for r in results:
            if r.engine == engine.name:
                reasons.setdefault(r.op, []).append(r.reason if r.status == verdict.REFUSED else "")
        for op, why in reasons.items():
            if not all(why) or not (op in declared or op in named):
                continue
            none = "its case was not" if len(why) == 1 else f"none of its {len(why)} cases was"
            reason = Counter(why).most_common(1)[0][0].removeprefix(f"{engine.name} ").removesuffix(f" in {op}")
            how = "declared" if op in declared else "asked for"
            fails = op in declared and op in whole
            (failing if fails else telling).append(f"{engine.name}: {op} is {how}, but {none} judged: {reason}")
    return failing, telling
