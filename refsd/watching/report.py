"""The report on calls of torch's operations, in words."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from refsd.golden.wording import counted
from refsd.watching.calls import Call
from refsd.watching.judging import Verdict

_LONGEST = 60  # characters of an argument


@dataclass
class WrongCall:
    """The first wrong call.

    what:    its number, operation, module and arguments
    causes:  phrases on what explains it, the likeliest first
    call:    with copies of its tensors; verdict: on it
    written: the files that show it; "" if none
    """

    what: str
    causes: list[str]
    call: Call
    verdict: Verdict
    written: str = ""


class Operations:
    """The verdicts on the operations of a program.

    total:      number of calls; judged: of these; operations: names of the judged ones
    not_judged: (reason, operation) -> number of calls
    first:      the first wrong call; wrong_calls: number of wrong calls; others: function -> those after the first
    not_finite: the first call that made NaN or infinity of finite inputs, and whether an honest one does so too
    margin:     the greatest error / limit of the right calls; nearest: the call that has it
    seconds:    that judging took
    """

    def __init__(self, title: str):
        self.title = title
        self.total = self.judged = self.wrong_calls = 0
        self.operations: set[str] = set()
        self.not_judged: Counter[tuple[str, str]] = Counter()
        self.first: WrongCall | None = None
        self.others: Counter[str] = Counter()
        self.not_finite: tuple[str, bool] | None = None
        self.margin, self.nearest = 0.0, ""
        self.seconds = 0.0

    @property
    def passed(self) -> bool:
        """True if at least one call was judged, and all judged calls are right."""
        return bool(self.judged) and not self.wrong_calls

    def __str__(self) -> str:
        kinds = counted(len(self.operations), "operation")
        judged = f"{self.judged} of {counted(self.total, 'call')} judged ({kinds}) in {self.seconds:.1f} s"
        if not self.total:
            return f"{self.title}: no operation of torch was called"
        if self.first is None:
            near = f", the nearest to its limit at {self.margin:.2f} of it ({self.nearest})" if self.nearest else ""
            lines = [f"{self.title}: right; {judged}{near}"]
        else:
            lines = [f"{self.title}: {counted(self.wrong_calls, 'wrong call')}; {judged}", *self._first(self.first)]
        if self.not_finite is not None:
            what, honest = self.not_finite
            verdict = "an honest one makes it too" if honest else "it is wrong"
            lines.append(f"  the first NaN or infinity from finite inputs: {what}; {verdict}")
        for reason, count in self._reasons().items():
            lines.append(f"  not judged, {reason}: {count}")
        return "\n".join(lines)

    def _first(self, first: WrongCall) -> list[str]:
        lines = [
            f"  first: {first.what}",
            f"    {first.verdict.reason}",
            *(f"    {cause}" for cause in first.causes),
        ]
        if first.written:
            lines.append(f"    {first.written}")
        if self.others:
            after = ", ".join(f"{function} {count}" for function, count in self.others.most_common(5))
            lines.append(f"  wrong after it: {after}")
        return lines

    def _reasons(self) -> dict[str, str]:
        """Return reason -> number of calls and their operations."""
        reasons: dict[str, Counter[str]] = {}
        for (reason, op), count in self.not_judged.items():
            reasons.setdefault(reason, Counter())[op] += count
        return {
            reason: f"{counted(sum(ops.values()), 'call')} ({', '.join(op for op, _ in ops.most_common(6))})"
            for reason, ops in reasons.items()
        }


def described(call: Call) -> str:
    """Return "call 212, aten.convolution.default in down_blocks.1: input [2, 4, 8, 6] bfloat16, ..."."""
    parts = [f"{name} {_argument(value)}" for name, value in call.args.items() if _worth_saying(value)]
    place = f"in {call.place}" if call.place else "outside of any module"
    y = ", ".join(_argument(y) for y in call.outputs[:2])
    return f"call {call.number}, {call.function} {place}: {', '.join(parts)} -> {y}"


def _worth_saying(value: Any) -> bool:
    return value is not None and value is not False


def _argument(value: Any) -> str:
    if hasattr(value, "stride"):
        dtype = str(value.dtype).removeprefix("torch.")
        strides = "" if value.is_contiguous() else f" strides {list(value.stride())}"
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{list(value.shape)} {dtype}{strides}{device}"
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "stride"):
        return f"({', '.join(_argument(one) for one in value[:3])}{', ...' if len(value) > 3 else ''})"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
