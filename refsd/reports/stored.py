"""Write and read a report as JSON with every metric: `conform.json`, the input of other commands."""

from pathlib import Path

import msgspec

from refsd.golden.input_file import read_input
from refsd.golden.report import Report
from refsd.numerics.errors import BadInput
from refsd.reports.cells import ORDER

_LARGEST = 2**28  # bytes that a file may have


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
