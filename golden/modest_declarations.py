"""Find engines that declare coarser numerics than they compute in: their bounds let errors pass."""

import shlex
from collections.abc import Iterable, Mapping
from statistics import median

from refsd.golden import verdict
from refsd.golden.metrics import Metrics
from refsd.golden.operations import OPERATIONS
from refsd.golden.report import Result
from refsd.golden.wording import counted

# An engine is nearer to the truth than what it declares by this in each case. Another order of sums is below 3.
_NEARER = 16.0
# Cases in which the declared numerics are not exact, at least.
_CASES = 3


def modest_declarations(results: Iterable[Result], arguments: Mapping[str, str]) -> list[str]:
    """Return a line for each of an engine's numerics whose every answer is far nearer to the truth than declared.

    Of operations alone: `refsd profile` asks about no others.

    arguments: engine -> the argument that names it
    """
    nearer: dict[tuple[str, str], list[float]] = {}
    for r in results:
        if r.status == verdict.PASS and r.op in OPERATIONS:
            ratios = nearer.setdefault((r.engine, r.numerics), [])
            ratios += [_ratio(m) for m in r.outputs if m.honest_relative_l2]
    lines = []
    for (engine, numerics), ratios in nearer.items():
        if len(ratios) >= _CASES and min(ratios) >= _NEARER:
            times = f"{round(median(ratios), -1):.0f}" if median(ratios) < 1e6 else "over a million"
            lines.append(
                f"{engine}: {counted(len(ratios), 'answer')} of {numerics} are {times} times nearer to the truth "
                f"than declared: errors pass. `refsd profile {shlex.quote(arguments[engine])}` tells what to "
                "declare"
            )
    return lines


def _ratio(m: Metrics) -> float:
    return m.honest_relative_l2 / max(m.relative_l2, 1e-9 * m.honest_relative_l2)
