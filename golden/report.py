"""What a run of conformance says: a result for each engine and case, and how it compares with an earlier run."""

import msgspec

from refsd.golden import verdict
from refsd.golden.explanation import Explanation, Nearest
from refsd.golden.metrics import Metrics

RIGHT, WRONG, UNSEEN = "right", "wrong", "unseen"
NOT_SOUGHT = "no cause was sought"


class Step(msgspec.Struct, frozen=True):
    """One tap of an answer that does not pass.

    state: "right" or "wrong", by what the engine computed since the tap before, without inherited errors; "unseen"
           where the honest run itself is too far from the truth to judge by
    """

    name: str
    state: str
    margin: float


class Result(msgspec.Struct, frozen=True):
    """The verdict on one engine's answer to one case.

    status:     of verdict.py: pass, fail, deviates, waived, refused, error
    margin:     the error as a multiple of what is allowed: above 1 it fails; criterion: which one gave it
    reason:     one line; empty for a pass
    place:      the first tap or output that is wrong
    causes:     known bugs with which the reference agrees with the engine, the likeliest first
    possible:   bugs that explain the answer, whose effect here is no larger than roundings: named as causes only
                where another failing case of the operation has them
    looks:      phrases that describe the answer, where no bug explains it
    nearest:    the known bug that comes nearest, where none explains it
    log:        the last lines that an engine printed which died
    cut:        a phrase that the search for a cause was cut by its time limit, or NOT_SOUGHT; else empty
    deviations: those that explain the engine's answer
    outputs:    the metrics, from which the verdict can be computed again
    way:        every tap that the engine gave, in the order of computation, where one is wrong
    taps:       metrics of the first wrong taps
    seconds:    the time that the engine took
    kept:       the folder with the answer, the truth and the honest run; empty if they are not kept
    """

    engine: str
    case: str
    op: str
    status: str
    numerics: str = ""
    margin: float = 0.0
    criterion: str = ""
    reason: str = ""
    place: str = ""
    causes: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    nearest: Nearest | None = None
    cut: str = ""
    log: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    outputs: list[Metrics] = []
    way: list[Step] = []
    taps: list[Metrics] = []
    seconds: float = 0.0
    kept: str = ""

    @property
    def conforms(self) -> bool:
        return self.status in (verdict.PASS, verdict.WAIVED, verdict.REFUSED)

    def led_by(self, cause: str) -> "Result":
        """Return the result with one of its causes as the first, in the reason, too."""
        causes = (cause, *(other for other in self.causes if other != cause))
        before, after = Explanation(self.causes).text, Explanation(causes).text
        return msgspec.structs.replace(self, causes=causes, reason=self.reason.replace(before, after))

    @property
    def title(self) -> str:
        """Return the title under which a failure without a cause is reported: "gelu: unexplained; y = 2 truth".

        Of a reason only the first phrase: waivers are named at its end.
        """
        if self.nearest is not None and self.nearest.telling:
            near = f"the nearest known bug, {self.nearest.cause!r}, explains {self.nearest.percent} %"
            return f"{self.op}: unexplained; {near}"
        if self.looks:
            return f"{self.op}: unexplained; {self.looks[0]}"
        if self.criterion == "output":
            return f"{self.op}: {self.reason.partition('; ')[0]}"
        return f"{self.op}: {'wrong' if self.cut == NOT_SOUGHT else 'unexplained'} ({self.criterion})"


class Missing(msgspec.Struct, frozen=True):
    """An engine that cannot be judged, and why."""

    name: str
    why: str


# Engine, case.
Pair = tuple[str, str]


class Baseline(msgspec.Struct, frozen=True):
    """An earlier report to compare with, whose failures are known.

    file:     its name
    new:      fails now, and passed or was missing in the baseline, or failed by another bug and by less
    known:    fails in both
    fixed:    failed in the baseline and conforms now
    unseen:   failed in the baseline and is not judged now
    shortage: engines that ran too few cases now, but not in the baseline, a line each
    """

    file: str
    new: list[Pair] = []
    known: list[Pair] = []
    fixed: list[Pair] = []
    unseen: list[Pair] = []
    shortage: list[str] = []


class Report(msgspec.Struct):
    """The results of one run.

    refsd:    version
    engines:  name -> version
    missing:  engines that cannot be judged
    results:  one for each engine and case
    shortage: engines that ran fewer cases than they must, a line each
    shared:   traits that failing cases have and passing ones lack, a line each
    partial:  how much of an interrupted run was judged; empty for a complete run
    baseline: the comparison with an earlier report
    notes:    what is left out of the report, a line each
    date:     the day of the run, as 2026-11-23
    devices:  engine -> the device that it computed on
    profile:  of the corpus, which the engines must meet: "2026.11/sd15"; "" for none
    """

    refsd: str
    engines: dict[str, str]
    missing: list[Missing]
    results: list[Result]
    shortage: list[str] = []
    shared: list[str] = []
    partial: str = ""
    baseline: Baseline | None = None
    notes: list[str] = []
    date: str = ""
    devices: dict[str, str] = {}
    profile: str = ""

    @property
    def conforms(self) -> bool:
        """Return True if a complete run has no failure and no shortage; with a baseline only new ones count."""
        if self.partial:
            return False
        if self.baseline is not None:
            return not self.baseline.new and not self.baseline.shortage
        return not self.shortage and all(r.conforms for r in self.results)

    def of(self, engine: str) -> list[Result]:
        return [r for r in self.results if r.engine == engine]
