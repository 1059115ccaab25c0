"""Write and read a report as JSON with every metric: `conform.json`, the input of other commands."""

from contextlib import suppress
from pathlib import Path

import msgspec

from refsd.golden import verdict
from refsd.golden.input_file import read_input
from refsd.golden.report import Report
from refsd.numerics.errors import BadInput
from refsd.reports.cells import ORDER

_LARGEST = 2**28  # bytes that a file may have


# Where a run writes its report, unless it is told another folder.
FOLDER = Path("refsd-report")


def encode(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def decode(data: bytes) -> Report:
    """Decode the JSON of `encode`. Raises BadInput."""
    try:
        report = msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not a conformance report: {error}") from None
    for r in report.results:
        if r.status not in ORDER:
            raise BadInput(f"not a conformance report: {r.case} has the status {r.status!r}")
    return report


def read(path: Path) -> Report:
    """Read a report from a file. Raises BadInput with the file's name."""
    try:
        return decode(read_input(path, _LARGEST, "a report of `refsd conform`"))
    except BadInput as error:
        text = str(error)
        raise BadInput(text if text.startswith(str(path)) else f"{path}: {text}") from None


def first_cause(path: Path, engine: str, case: str) -> str:
    """Return the cause under which a report names a failure; "" if it names none, or cannot be read."""
    with suppress(BadInput):
        for r in read(path).results:
            if (r.engine, r.case, r.status) == (engine, case, verdict.FAIL) and r.causes:
                return r.causes[0]
    return ""
