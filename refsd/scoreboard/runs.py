"""Read reports and submissions, and keep of each what the board shows: counts, and the failing cases."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from refsd.golden import verdict
from refsd.golden.input_file import read_input
from refsd.golden.report import Report, Result
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.reports.cells import ORDER
from refsd.submissions import packing
from refsd.submissions.verify import contradicted

RUNS = "runs.json"
_LARGEST = 2**28  # bytes of a file
_FAILING = 500  # cases of a run that are shown
_REASON = 500  # characters
_CAUSES = 3
_REFUSALS = 30


class Failing(msgspec.Struct, frozen=True):
    """A case that does not conform, or is waived."""

    case: str
    op: str
    status: str
    margin: float
    numerics: str = ""
    place: str = ""
    causes: tuple[str, ...] = ()
    reason: str = ""


class Run(msgspec.Struct, frozen=True):
    """One engine's verdicts in one report.

    driver:   in the submitter's words
    date:     as 2026-11-23; "" in a report that has none
    submitted: the verdicts were given again from a submission's metrics
    statement: the submitter's words
    counts:   operation -> status -> number of cases
    margins:  operation -> the worst margin of what was judged
    failing:  the worst first; left_out: how many more
    refused:  reasons with numbers of cases
    """

    engine: str
    version: str
    device: str
    driver: str
    date: str
    refsd: str
    profile: str
    submitted: bool
    statement: str
    counts: dict[str, dict[str, int]]
    margins: dict[str, float]
    failing: list[Failing]
    left_out: int
    refused: list[tuple[str, int]]

    @property
    def slug(self) -> str:
        """A file name that no other run of the board has."""
        facts = (self.engine, self.version, self.device, self.date, self.refsd, self.profile, sorted(self.counts))
        plain = re.sub(r"[^A-Za-z0-9.-]+", "-", self.engine).strip("-.")[:60] or "engine"
        return f"{plain}-{hashlib.sha256(repr(facts).encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"

    @property
    def order(self) -> tuple[str, str, str, list[int], str]:
        """What runs are sorted by: the oldest first, 0.9 before 0.25."""
        numbers = [int(number) for number in re.findall(r"\d{1,9}", self.version.partition(" (")[0])]
        return self.engine.lower(), self.device, self.date, numbers, self.version


class _Result(msgspec.Struct):
    engine: str
    case: str
    op: str
    status: str
    numerics: str = ""
    margin: float = 0.0
    place: str = ""
    causes: tuple[str, ...] = ()
    reason: str = ""


class _Report(msgspec.Struct):
    """A report without its metrics, which are skipped unread."""

    refsd: str
    engines: dict[str, str]
    results: list[_Result]
    date: str = ""
    devices: dict[str, str] = {}
    profile: str = ""
    partial: str = ""


def find(folder: Path) -> list[Path]:
    """List reports and submissions in a folder and below, sorted. Raises BadInput where there is none."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder of reports")
    found = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".zip") and path.is_file())
    if not found:
        raise BadInput(f"{folder}: no report (conform.json) and no submission (*.zip) in it")
    return found


def read(path: Path) -> list[Run]:
    """Read the runs of a report, of a submission, or of a board's runs.json.

    Raises BadInput for anything else, and for a submission whose verdicts are not those of its metrics.
    """
    if path.suffix == ".zip":
        return _submitted(path)
    data = read_input(path, _LARGEST, "a report of `refsd conform`")
    try:
        if data.lstrip()[:1] == b"[":
            return msgspec.json.decode(data, type=list[Run])
        return list(_runs(msgspec.json.decode(data, type=_Report), path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not a report: {printable(str(error), 200)}") from None


def encode(runs: Sequence[Run]) -> bytes:
    """Write runs, a line each, so that a board can be made again without the reports."""
    lines = b",\n".join(msgspec.json.encode(run) for run in runs)
    return b"[\n" + lines + b"\n]\n"


def _submitted(path: Path) -> list[Run]:
    parts = packing.read(path)
    wrong = contradicted(parts)
    if wrong:
        raise BadInput(f"{path}: refused: {wrong[0]}")
    submission = parts.submission
    return [
        msgspec.structs.replace(
            run, submitted=True, statement=submission.statement, driver=submission.drivers.get(run.engine, "")
        )
        for run in _runs(parts.report, path)
    ]


def _runs(report: _Report | Report, path: Path) -> Iterator[Run]:
    by_engine: dict[str, list[_Result | Result]] = {name: [] for name in report.engines}
    for r in report.results:
        if r.status not in ORDER or r.engine not in by_engine:
            raise BadInput(
                f"{path}: not a report: {printable(r.case, 100)} has the status {printable(r.status, 20)!r}"
            )
        by_engine[r.engine].append(r)
    if report.partial:
        raise BadInput(f"{path}: an interrupted run, {printable(report.partial, 100)}: judge again")
    for engine, results in by_engine.items():
        if any(r.status != verdict.REFUSED for r in results):
            yield _run(report, engine, results)


def _run(report: _Report | Report, engine: str, results: Sequence[_Result | Result]) -> Run:
    counts: dict[str, dict[str, int]] = {}
    margins: dict[str, float] = {}
    for r in results:
        of = counts.setdefault(r.op, {})
        of[r.status] = of.get(r.status, 0) + 1
        if r.status != verdict.REFUSED:
            margins[r.op] = max(margins.get(r.op, 0.0), r.margin)
    odd = [r for r in results if r.status not in (verdict.PASS, verdict.REFUSED)]
    odd.sort(key=lambda r: (ORDER.index(r.status), -r.margin, r.case))
    reasons = Counter(printable(r.reason, 200) for r in results if r.status == verdict.REFUSED)
    failing = [
        Failing(r.case, r.op, r.status, r.margin, r.numerics, r.place, r.causes[:_CAUSES], r.reason[:_REASON])
        for r in odd[:_FAILING]
    ]
    refused = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return Run(
        engine,
        report.engines[engine],
        report.devices.get(engine, ""),
        "",
        report.date,
        report.refsd,
        report.profile,
        False,
        "",
        {op: dict(sorted(counts[op].items())) for op in sorted(counts)},
        {op: margins[op] for op in sorted(margins)},
        failing,
        max(len(odd) - _FAILING, 0),
        refused[:_REFUSALS],
    )
