"""Waivers: failures that a team accepts for a time, each with a reason and a last day.

A waiver of a deviation that explains the answer:

    [[waiver]]
    name = "sdcpp/gelu-tanh"            # the deviation
    reason = "upstream issue 123"
    expires = 2027-03-31
    engine = "sdcpp*"                   # optional globs
    cases = "model/*"

A waiver of cases, for any failure, or only for failures with a given cause, or only on CPUs with a given feature:

    [[waiver]]
    cases = "layer_norm/*"              # a glob
    reason = "upstream issue 124"
    expires = 2027-03-31
    engine = "ggml*"                    # optional globs
    cause = "eps*"
    when = "amx_bf16"                   # optional: a CPU feature as Linux names it
"""

import datetime
import fnmatch
import glob
import tomllib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from refsd.golden import verdict
from refsd.golden.input_file import read_input
from refsd.golden.report import Result
from refsd.golden.wording import did_you_mean
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.errors import BadInput
from refsd.numerics.processor import CPU_FEATURES

_LARGEST = 2**20  # bytes


class Waiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure that is accepted for a time.

    name:    a deviation; empty: any failure of the cases
    expires: the last day on which it is valid
    engine, cases, cause: globs; cause only without a name. For a wrong answer without a cause, "OPERATION:" and
             the rest of its title in the report
    when:    a CPU feature: other machines fail without this waiver; empty: all machines
    """

    name: str = ""
    reason: str = ""
    expires: datetime.date = datetime.date.min
    engine: str = "*"
    cases: str = "*"
    cause: str = "*"
    when: str = ""

    def covers(self, engine: str, case: str) -> bool:
        return fnmatch.fnmatchcase(engine, self.engine) and fnmatch.fnmatchcase(case, self.cases)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    waiver: list[Waiver] = []


def read(path: Path, known: Iterable[str] = tuple(DEVIATIONS)) -> list[Waiver]:
    """Read the waivers of a file. Raises BadInput for an invalid file, an empty reason or an unknown deviation."""
    try:
        table = tomllib.loads(read_input(path, _LARGEST, "waivers in TOML").decode("utf-8"))
        waivers = msgspec.convert(table, _File).waiver
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, msgspec.ValidationError) as error:
        how = "; write expires = 2027-03-31, without quotes" if "expires" in str(error) else ""
        raise BadInput(f"{path}: not a file of waivers (name or cases, reason, expires): {error}{how}") from None
    known = set(known)
    for waiver in waivers:
        wrong = _wrong(waiver, known)
        if wrong:
            raise BadInput(f"{path}: {wrong}")
    return waivers


def _wrong(waiver: Waiver, known: set[str]) -> str:
    """Say why a waiver is invalid; empty if it is valid."""
    if waiver.name and waiver.name not in known:
        return f"unknown deviation {waiver.name!r}; there are {', '.join(sorted(known))}"
    what = waiver.name or waiver.cases
    if not waiver.name and waiver.cases == "*":
        return "a waiver has neither the name of a deviation nor a glob of cases"
    if waiver.name and waiver.cause != "*":
        return f"the waiver of {what} has a cause: a deviation is one already"
    if waiver.when and waiver.when not in CPU_FEATURES:
        return f"the waiver of {what}: unknown CPU feature {waiver.when!r}; there are {', '.join(CPU_FEATURES)}"
    if not waiver.reason.strip():
        return f"the waiver of {what} gives no reason"
    return f"the waiver of {what} has no day on which it expires" if waiver.expires == datetime.date.min else ""


def applicable(waivers: Iterable[Waiver], features: Collection[str]) -> list[Waiver]:
    """Return the waivers that hold on a machine with these CPU features."""
    return [w for w in waivers if not w.when or w.when in features]


def without_cases(waivers: Iterable[Waiver], results: Sequence[Result]) -> list[str]:
    """Return a line for each waiver that covers no case of a whole run.

    Waivers of engines that are not in the run are left out, unless one has a similar name.

    results: also those of refused cases
    """
    lines = []
    for waiver in waivers:
        if not any(waiver.covers(r.engine, r.case) for r in results):
            engines, cases = {r.engine: r for r in results}, {r.case: r for r in results}
            meant = did_you_mean(waiver.cases, {f"{name.partition('/')[0]}/*": "" for name in cases})
            if not fnmatch.filter(engines, waiver.engine):
                meant = did_you_mean(waiver.engine, engines)
                if not meant:  # one of another engine, which this run does not ask
                    continue
            what = waiver.name or waiver.cases
            of = f" of engine {waiver.engine}" if waiver.engine != "*" else ""
            lines.append(f"the waiver of {what}{of} matched no case{meant}")
    return lines


def apply(
    waivers: Sequence[Waiver], deviations: Iterable[str], engine: str, case: str, today: datetime.date
) -> tuple[bool, str]:
    """Return whether all of the deviations are waived today, and a line that names the waivers or says why not."""
    said = []
    for deviation in deviations:
        covering = [w for w in waivers if w.name == deviation and w.covers(engine, case)]
        waived, line = _first(covering, deviation, today)
        if not waived:
            return False, line
        said.append(line)
    return bool(said), "; ".join(said)


def waive(waivers: Sequence[Waiver], result: Result, today: datetime.date) -> tuple[bool, str]:
    """Return whether a failing case is waived today, and a line that names the waiver or says why not."""
    of_case = [w for w in waivers if not w.name and w.covers(result.engine, result.case)]
    covering = [w for w in of_case if w.cause == "*" or _names(w.cause, result)]
    if of_case and not covering and result.cut and not result.causes:
        waived, line = _first(of_case, "the case", today)
        return waived, f"{line} (its cause is not known: {result.cut})"
    if of_case and not covering:
        found = ", ".join(f'"{one}"' for one in result.causes[:3])
        found = f"the causes found are {found}" if found else "no cause was found here: leave `cause` out"
        titled = result.status == verdict.FAIL and not result.causes
        alike = glob.escape(result.title.partition(";")[0]) + "*"
        found += f", or name the case, or set it to {alike!r}" if titled else ""
        return False, f'the waiver of cause "{of_case[0].cause}" does not hold: {found}'
    return _first(covering, "the case", today)


def _names(pattern: str, result: Result) -> bool:
    """Return True if a waiver's cause names one of the result's, or the title of a wrong answer without one."""
    causes = result.causes
    # A title quotes the nearest bug, which is no cause of it: "*eps*" must not match it.
    if not causes and result.status == verdict.FAIL and pattern.startswith(f"{result.op}:"):
        causes = (result.title,)
    return any(one == pattern or fnmatch.fnmatchcase(one, pattern) for one in causes)


def _first(covering: Sequence[Waiver], what: str, today: datetime.date) -> tuple[bool, str]:
    """Return whether one of the waivers is valid today, and a line about it; "" if there are no waivers."""
    valid = [w for w in covering if w.expires >= today]
    if valid:
        return True, f"{what} waived until {valid[0].expires}: {valid[0].reason}"
    if covering:
        return False, f"the waiver of {what} expired on {max(w.expires for w in covering)}"
    return False, ""
