"""The report of `refsd compare` and `refsd.judge` in lines, the verdict first."""

from collections.abc import Iterator, Sequence

from refsd.golden.metrics import Metrics
from refsd.golden.verdict import NO_WITNESS, judge_output
from refsd.golden.wording import counted
from refsd.judges.comparison import Comparison
from refsd.reports.cells import margin_text

# With more taps than this, only the first wrong ones have a line.
_LINES = 20
_WRONG = 3
_ADVISED = 3


def headline(compared: Comparison, what: str) -> str:
    """The verdict in a line: "FAIL  silu/f32/wide-x2x320 under float32, at y"."""
    verdict, place = compared.examined.verdict, compared.examined.place
    word = "pass" if verdict.passed else "not judged" if verdict.criterion == NO_WITNESS else "FAIL"
    return f"{word}  {what}{f', at {place}' if place else ''}"


def comparison_lines(compared: Comparison) -> Iterator[str]:
    """The lines below: each output and, of taps, the first wrong ones, with what explains the error."""
    examined = compared.examined
    taps, unseen, wrong = examined.trace.taps, {*examined.unseen}, {*examined.wrong}
    nothing_known = not taps and all(m.found is None for m in examined.outputs)
    yield from compared.misnamed
    if nothing_known:
        yield from compared.notes
    shown = taps if len(taps) <= _LINES else [m for m in taps if m.output in wrong][:_WRONG]
    for m in shown:
        yield from _tensor(m, "not judged" if m.output in unseen else "FAIL")
    if shown is not taps and len(wrong) > len(shown):
        yield f"... and {counted(len(wrong) - len(shown), 'wrong tap')} more: --json has all"
    right = {m.output for m in shown if judge_output(m).passed}  # an output may be a tap, too
    for m in examined.outputs:
        if m.output not in right or not judge_output(m).passed:
            twice = any(tap.output == m.output for tap in shown)
            yield from _tensor(m, "FAIL", ", of the whole run" if twice else "")
    if taps:
        yield f"{len(taps) - len(wrong) - len(unseen)} of {counted(len(taps), 'tap')} right"
    if wrong:
        yield f"the first wrong one in the order of computation: {examined.place}"
        if examined.between:
            yield f"{examined.between}; to narrow it, dump {_spread(examined.hidden_before(examined.place)[1])}"
    if compared.stored:
        yield f"      {compared.stored}"
    yield from (f"      the reference agrees if {cause}" for cause in compared.causes)
    yield from (f"      {phrase}" for phrase in compared.looks)
    passed = (nothing_known or examined.verdict.passed) and not wrong
    if not (passed or compared.causes or compared.looks or compared.stored):
        yield "      no cause was found"
    yield from (f"and at {tap}: the reference agrees if {cause}" for tap, cause in compared.others.items())
    if unseen:
        yield f"{counted(len(unseen), 'tap')} not judged: there the honest run itself is too far from the truth"
    if not nothing_known:
        yield from compared.notes
    if compared.absent:
        names = ", ".join(compared.absent[:5]) + (", ..." if len(compared.absent) > 5 else "")
        yield f"not in the dump, so not judged: {counted(len(compared.absent), 'tensor')}: {names}"


def _spread(names: Sequence[str]) -> str:
    """Name up to three of the tensors, evenly spread."""
    some = [names[(i + 1) * len(names) // (_ADVISED + 1)] for i in range(_ADVISED)]
    return " or ".join(dict.fromkeys(some))


def _tensor(m: Metrics, otherwise: str, of: str = "") -> Iterator[str]:
    """One tensor's verdict. otherwise: the word for a tensor that does not pass; of: what stands behind its name"""
    one = judge_output(m)
    distance = f"relative L2 {m.relative_l2:.3g}, an honest run's {m.honest_relative_l2:.3g}"
    word = "pass" if one.passed else otherwise
    if m.engine is None:
        yield f"{word}  {one.reason}"
        return
    yield f"{word}  {m.output}{of}  margin {margin_text(one.margin)} ({one.criterion})  {distance}"
    if not one.passed:
        yield f"      {one.reason}"
