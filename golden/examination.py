"""Examine one answer: its verdict, the first place that is wrong, and what explains it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from refsd.golden.explanation import Explanation
from refsd.golden.judge import Answer, Judge, Standard, Trace
from refsd.golden.metrics import Metrics, not_asked_for
from refsd.golden.search_cuts import noted_cuts, search_memory
from refsd.golden.verdict import NO_WITNESS, Judgement, judge, judge_output
from refsd.golden.wording import counted, did_you_mean
from refsd.numerics.machine import one_blas_thread

# Operations that a phrase lists, at most.
_OPS = 6


class Examination(NamedTuple):
    """The measurements of one answer.

    trace:   the engine's taps, each measured against the reference computed from the engine's own earlier taps
    outputs: first taps whose names the reference does not have; then the outputs in the order of computation, and
             those that the case does not ask for
    unknown: the number of taps with unknown names
    """

    trace: Trace
    outputs: Sequence[Metrics]
    unknown: int = 0

    @property
    def unseen(self) -> list[str]:
        """List the taps that cannot be judged because the honest run itself is too far from the truth there."""
        return [m.output for m in self.trace.taps if judge_output(m).criterion == NO_WITNESS]

    @property
    def wrong(self) -> list[str]:
        """List the taps where the engine itself made an error, in the order of computation."""
        unseen = {*self.unseen}
        return [m.output for m in self.trace.taps if m.output not in unseen and not judge_output(m).passed]

    @property
    def verdict(self) -> Judgement:
        """Judge the first wrong tap or output. A tap that cannot be judged counts only if nothing else can be."""
        if self.unknown:
            return judge(self.outputs)
        unseen = {*self.unseen}
        seen = [*(m for m in self.trace.taps if m.output not in unseen), *self.outputs]
        return judge(seen or self.trace.taps)

    @property
    def place(self) -> str:
        """Name the first wrong tap or output; empty where all conform, or where a tap's name is unknown."""
        if self.unknown:
            return ""
        verdict = self.verdict
        first = next((m.output for m in self.outputs if not judge_output(m).passed), "")
        return "" if verdict.passed else next(iter(self.wrong), first)

    @property
    def way(self) -> str:
        """Say in a phrase how many taps are wrong; empty if none is."""
        if self.unknown or not self.trace.taps or not self.wrong:
            return ""
        ops = [self.trace.ops.get(name, ()) for name in self.wrong]
        alone = {op[0] if len(op) == 1 else "" for op in ops}
        each = f", each after {next(iter(alone))}" if len(alone) == 1 and all(alone) else ""
        own = "by itself" if len(self.wrong) == 1 else f"by themselves{each}"
        taps = counted(len(self.trace.taps) - len(self.unseen), "tap")
        return f"{len(self.wrong)} of {taps} wrong {own}{self.between and f'; {self.between}'}"

    @property
    def between(self) -> str:
        """Say between which taps the first error lies, if several operations do: their results were not given."""
        place = next(iter(self.wrong), "")
        ops = [*dict.fromkeys(self.trace.ops.get(place, ()))]
        before, hidden = self.hidden_before(place)
        if len(ops) < 2 or not hidden:
            return ""
        some = f"{', '.join(ops[:-1])} or {ops[-1]}" if len(ops) <= _OPS else f"one of {len(ops)} operations"
        return f"the error is between {before or 'the inputs'} and {place}: {some}"

    def hidden_before(self, place: str) -> tuple[str, list[str]]:
        """Return the tap given before a place ("" for none), and those between them that the reference has.

        Where the data flow is known, only taps that the place is computed from.
        """
        names, sources = [*self.trace.names], self.trace.sources
        names = names[: names.index(place)] if place in names else names
        given = {m.output for m in self.trace.taps}
        last = max((i for i, name in enumerate(names) if name in given), default=-1)
        if place not in sources:
            return (names[last] if last >= 0 else ""), names[last + 1 :]
        met, left = dict[str, None](), [*sources[place]]
        while left:
            if (name := left.pop()) not in met:
                met[name] = None
                left += () if name in given else sources.get(name, ())
        return next((n for n in reversed(names) if n in given and n in met), ""), [
            name for name in names if name in met and name not in given
        ]


def examine(kind: Judge, standard: Standard, actual: Answer, taps: Answer) -> Examination:
    """Measure an engine's outputs, and each tap against the reference computed from the engine's earlier taps."""
    trace = Trace()
    if taps:
        trace = kind.trace(
            standard.case, standard.inputs, {**taps, **actual}, standard.numerics, standard.deviations
        )
    strangers = {name: y for name, y in taps.items() if name not in trace.names}
    unknown = not_asked_for({n: y for n, y in strangers.items() if not once_more(n, trace.names)}, {})
    unknown = [replace(m, place=_no_tap(m.output, trace.names)) for m in unknown]
    return Examination(trace, [*unknown, *kind.measure(standard, actual)], len(unknown))


def once_more(name: str, known: Sequence[str]) -> bool:
    """Return True for "NAME.2" beside a known NAME: the engine calls this layer more often than the reference."""
    first, _, call = name.rpartition(".")
    return call.isdigit() and first in known


def _no_tap(name: str, known: Sequence[str]) -> str:
    return f"{name!r} is the name of no tap of this case{did_you_mean(name, known)}"


def explain(
    kind: Judge, standard: Standard, actual: Answer, taps: Mapping, examined: Examination, at: str = ""
) -> Explanation:
    """Search for what explains an answer that does not conform, at one wrong tap, if any is.

    at: this tap; "": the first wrong one

    Nothing where a tap's name is unknown: then the taps are not what the engine says they are.
    """
    if examined.unknown:
        return Explanation()
    memory = search_memory()
    short = memory is not None and memory.short
    with noted_cuts() as cuts, one_blas_thread():
        if examined.wrong:
            why = kind.explain(standard, {**taps, **actual}, at or examined.wrong[0])
        else:
            why = kind.explain(standard, actual)
    if not why.causes and short:
        return why._replace(cut="searched only for what explained other cases, for six had told nothing new")
    if why.causes or not cuts:
        return why
    return why._replace(cut=f"the search for a cause was cut after {max(cuts):g} s")
