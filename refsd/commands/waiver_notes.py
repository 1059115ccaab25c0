"""Find waivers that a run shows to be mistaken: of no case, or no longer needed."""

import fnmatch
from collections.abc import Collection, Iterator, Sequence

from refsd.adoption import folder as adopted
from refsd.cases import ASKED_FOR, CASES, meant
from refsd.golden import verdict
from refsd.golden.report import Result
from refsd.golden.waivers import Waiver, without_cases


def waiver_notes(
    waivers: Sequence[Waiver], results: Sequence[Result], chosen: Collection[str], whole: bool
) -> list[str]:
    """Return a line for each waiver that matches no case, or all of whose cases conform without it.

    results: of a complete run, also those of refused cases
    chosen:  names of the run's cases; whole: whether these are all that an engine is usually asked
    """
    lines = without_cases(waivers, results) if whole else list(_of_no_case(waivers, {*CASES, *chosen}))
    usual = [name for name in CASES if not name.startswith(ASKED_FOR)]
    for waiver in waivers:
        covered = [r for r in results if waiver.covers(r.engine, r.case) and r.status != verdict.REFUSED]
        expected = fnmatch.filter({*usual, *chosen}, waiver.cases)
        unseen = {(r.engine, name) for r in covered for name in expected} - {(r.engine, r.case) for r in results}
        if covered and not unseen and all(r.status == verdict.PASS for r in covered):
            n = len({r.case for r in covered})
            conform = "its only case that was judged conforms" if n == 1 else f"all {n} of its cases conform"
            lines.append(f"{_named(waiver)} is no longer needed: {conform}")
    return lines


def _of_no_case(waivers: Sequence[Waiver], known: Collection[str]) -> Iterator[str]:
    for waiver in waivers:
        if not waiver.cases.startswith(adopted.KIND) and not fnmatch.filter(known, waiver.cases):
            yield f"{_named(waiver)} matches no case{meant(waiver.cases)}"


def _named(waiver: Waiver) -> str:
    of = f" of engine {waiver.engine}" if waiver.engine != "*" else ""
    return f"the waiver of {waiver.name or waiver.cases}{of}"
