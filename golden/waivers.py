"""Waivers: deviations that a team accepts, each with a reason and a day on which it ends.

[[waiver]]
name = "sdcpp/gelu-tanh"            # the deviation
reason = "upstream issue 123"
expires = 2027-03-31
engine = "sdcpp*"                   # optional globs
cases = "model/*"
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
    name: str
    reason: str
    expires: datetime.date
    engine: str = "*"
    cases: str = "*"

    def covers(self, deviation: str, engine: str, case: str) -> bool:
        return (
            self.name == deviation
            and fnmatch.fnmatchcase(engine, self.engine)
            and fnmatch.fnmatchcase(case, self.cases)
        )


class _File(msgspec.Struct, forbid_unknown_fields=True):
    waiver: list[Waiver] = []


def read(path: Path, known: Iterable[str] = tuple(DEVIATIONS)) -> list[Waiver]:
    """The waivers of a file. Raises BadInput for what is not one, an empty reason or an unknown deviation."""
    try:
        table = tomllib.loads(read_input(path, _LARGEST, "waivers in TOML").decode("utf-8"))
        waivers = msgspec.convert(table, _File).waiver
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, msgspec.ValidationError) as error:
        raise BadInput(f"{path}: not a file of waivers (name, reason, expires): {error}") from None
    known = set(known)
    for waiver in waivers:
        if waiver.name not in known:
            raise BadInput(f"{path}: unknown deviation {waiver.name!r}; there are {', '.join(sorted(known))}")
        if not waiver.reason.strip():
            raise BadInput(f"{path}: the waiver of {waiver.name} gives no reason")
    return waivers


def apply(
    waivers: Sequence[Waiver], deviations: Iterable[str], engine: str, case: str, today: datetime.date
) -> tuple[bool, str]:
    """Whether every one of the deviations is waived today, and a line that says by what or why not."""
    said = []
    for deviation in deviations:
        covering = [w for w in waivers if w.covers(deviation, engine, case)]
        valid = [w for w in covering if w.expires >= today]
        if valid:
            said.append(f"{deviation} waived until {valid[0].expires}: {valid[0].reason}")
        elif covering:
            return False, f"the waiver of {deviation} expired on {max(w.expires for w in covering)}"
        else:
            return False, ""
    return bool(said), "; ".join(said)
