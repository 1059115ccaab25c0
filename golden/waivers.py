"""Waivers: what a team accepts for a time, each with a reason and a day on which it ends.

Of a deviation, which explains the answer:

    [[waiver]]
    name = "sdcpp/gelu-tanh"            # the deviation
    reason = "upstream issue 123"
    expires = 2027-03-31
    engine = "sdcpp*"                   # optional globs
    cases = "model/*"

Of cases, whatever is wrong with them, or only while the cause is the one that was found:

    [[waiver]]
    cases = "layer_norm/*"              # a glob
    reason = "upstream issue 124"
    expires = 2027-03-31
    engine = "ggml*"                    # optional globs
    cause = "eps*"
"""

import datetime
import fnmatch
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from refsd.golden.input_file import read_input
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.errors import BadInput

_LARGEST = 2**20  # bytes


class Waiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    name:    a deviation; empty: whatever is wrong with the cases
    expires: the last day on which it holds
    engine, cases, cause: globs; cause only without a name
    """

    name: str = ""
    reason: str = ""
    expires: datetime.date = datetime.date.min
    engine: str = "*"
    cases: str = "*"
    cause: str = "*"

    def covers(self, engine: str, case: str) -> bool:
        return fnmatch.fnmatchcase(engine, self.engine) and fnmatch.fnmatchcase(case, self.cases)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    waiver: list[Waiver] = []


def read(path: Path, known: Iterable[str] = tuple(DEVIATIONS)) -> list[Waiver]:
    """The waivers of a file. Raises BadInput for what is not one, an empty reason or an unknown deviation."""
    try:
        table = tomllib.loads(read_input(path, _LARGEST, "waivers in TOML").decode("utf-8"))
        waivers = msgspec.convert(table, _File).waiver
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, msgspec.ValidationError) as error:
        raise BadInput(f"{path}: not a file of waivers (name or cases, reason, expires): {error}") from None
    known = set(known)
    for waiver in waivers:
        wrong = _wrong(waiver, known)
        if wrong:
            raise BadInput(f"{path}: {wrong}")
    return waivers


def _wrong(waiver: Waiver, known: set[str]) -> str:
    """Why it is no waiver; empty if it is one."""
    if waiver.name and waiver.name not in known:
        return f"unknown deviation {waiver.name!r}; there are {', '.join(sorted(known))}"
    what = waiver.name or waiver.cases
    if not waiver.name and waiver.cases == "*":
        return "a waiver has neither the name of a deviation nor a glob of cases"
    if waiver.name and waiver.cause != "*":
        return f"the waiver of {what} has a cause: a deviation is one already"
    if not waiver.reason.strip():
        return f"the waiver of {what} gives no reason"
    return f"the waiver of {what} has no day on which it expires" if waiver.expires == datetime.date.min else ""


def apply(
    waivers: Sequence[Waiver], deviations: Iterable[str], engine: str, case: str, today: datetime.date
) -> tuple[bool, str]:
    """Whether every one of the deviations is waived today, and a line that says by what or why not."""
    said = []
    for deviation in deviations:
        covering = [w for w in waivers if w.name == deviation and w.covers(engine, case)]
        waived, line = _first(covering, deviation, today)
        if not waived:
            return False, line
        said.append(line)
    return bool(said), "; ".join(said)


def waive(
    waivers: Sequence[Waiver], engine: str, case: str, causes: Iterable[str], today: datetime.date
) -> tuple[bool, str]:
    """Whether a case is waived today, whatever is wrong with it, and a line that says by what or why not.

    causes: that were found; a waiver for a cause covers nothing where none is
    """
    found = tuple(causes)
    of_case = [w for w in waivers if not w.name and w.covers(engine, case)]
    covering = [w for w in of_case if w.cause == "*" or any(fnmatch.fnmatchcase(one, w.cause) for one in found)]
    if of_case and not covering:
        causes = ", ".join(f'"{one}"' for one in found[:3]) or "none"
        return False, f'the waiver of cause "{of_case[0].cause}" does not hold: the causes found are {causes}'
    return _first(covering, "the case", today)


def _first(covering: Sequence[Waiver], what: str, today: datetime.date) -> tuple[bool, str]:
    """Whether one of the waivers holds today, and what to say of it; an empty line where there is none."""
    valid = [w for w in covering if w.expires >= today]
    if valid:
        return True, f"{what} waived until {valid[0].expires}: {valid[0].reason}"
    if covering:
        return False, f"the waiver of {what} expired on {max(w.expires for w in covering)}"
    return False, ""
