"""Write a submission and read one: the same bytes for the same run, and nothing but five bounded members."""

import hashlib
import io
import platform
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from refsd.cases import CASES
from refsd.corpus import rules, versions
from refsd.golden.input_file import read_input
from refsd.golden.output_file import write_file
from refsd.golden.report import Report
from refsd.golden.waivers import Waiver
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.processor import processor
from refsd.submissions.collect import Collector
from refsd.submissions.form import (
    EVIDENCE,
    FORMAT,
    LARGEST,
    MEMBERS,
    OUTPUTS,
    REPORT,
    SKETCHES,
    SUBMISSION,
    Evidence,
    Submission,
)
from refsd.submissions.private import scrubber

# Zip has no date before; a member's date is no fact of the run.
_DATE = (1980, 1, 1, 0, 0, 0)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)
T = TypeVar("T")


class Parts(NamedTuple):
    """A submission, read."""

    submission: Submission
    report: Report
    evidence: list[Evidence]
    outputs: Mapping[str, np.ndarray]
    sketches: Mapping[str, np.ndarray]


def pack(
    path: Path, report: Report, of: Collector, waivers: Iterable[Waiver], statement: str, drivers: Mapping[str, str]
) -> None:
    """Write a submission. drivers: engine -> driver. Raises BadInput where the file cannot be written."""
    scrub = scrubber()
    bare = msgspec.structs.replace(report, results=[_bare(r) for r in report.results], baseline=None)
    clean = msgspec.convert(scrub(msgspec.to_builtins(bare)), Report)
    evidence = [msgspec.convert(scrub(msgspec.to_builtins(one)), Evidence) for one in of.evidence]
    version = report.profile.partition("/")[0] or versions.VERSION
    members = {
        REPORT: msgspec.json.encode(clean),
        EVIDENCE: msgspec.json.encode(evidence),
        OUTPUTS: safetensors.numpy.save(dict(sorted(of.outputs.items()))),
        SKETCHES: safetensors.numpy.save(dict(sorted(of.sketches.items()))),
    }
    submission = Submission(
        FORMAT,
        report.refsd,
        printable(statement, 10_000),
        report.date,
        version,
        versions.published(version).digest,
        rules.digests(r.op for r in report.results),
        {name: versions.digest(CASES[name]) for name in sorted({r.case for r in report.results})},
        dict(drivers),
        f"{platform.system()} {platform.machine()}, {processor()}",
        of.numerics,
        of.deviations,
        list(waivers),
        {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    )
    write_file(path, zipped({SUBMISSION: msgspec.json.encode(submission), **members}))


def zipped(members: Mapping[str, bytes]) -> bytes:
    """Zip members without dates, owners and attributes of this machine."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in MEMBERS:
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            archive.writestr(info, members[name])
    return file.getvalue()


def _bare(result):
    """A result without metrics, which are in the evidence, and without what changes from run to run."""
    return msgspec.structs.replace(result, outputs=[], taps=[], seconds=0.0, kept="")


def read(path: Path) -> Parts:
    """Read a submission. Raises BadInput, in one line, for anything that is none."""
    members = unzipped(path)
    submission = _decoded(path, SUBMISSION, members[SUBMISSION], Submission)
    if submission.format != FORMAT:
        raise BadInput(f"{path}: format {submission.format}, this refsd reads {FORMAT}")
    for name in sorted(members.keys() - {SUBMISSION}):
        if submission.sha256.get(name) != hashlib.sha256(members[name]).hexdigest():
            raise BadInput(f"{path}: {name} has been changed: its SHA-256 is not the one in {SUBMISSION}")
    return Parts(
        submission,
        _decoded(path, REPORT, members[REPORT], Report),
        _decoded(path, EVIDENCE, members[EVIDENCE], list[Evidence]),
        _tensors(path, OUTPUTS, members[OUTPUTS]),
        _tensors(path, SKETCHES, members[SKETCHES]),
    )


def unzipped(path: Path) -> dict[str, bytes]:
    """Unpack the members in memory, none beyond its size. Raises BadInput."""
    data = read_input(path, LARGEST, "a submission of `refsd conform --submission`")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            names = [info.filename for info in infos]
            for name in names:
                if name not in MEMBERS or names.count(name) > 1:
                    raise BadInput(f"{path}: not a submission: it holds {printable(name, 100)!r}, {_why(name)}")
            lacking = [name for name in MEMBERS if name not in names]
            if lacking:
                raise BadInput(f"{path}: not a submission: it lacks {', '.join(lacking)}")
            return {info.filename: _member(path, archive, info) for info in infos}
    except _BROKEN as error:
        raise BadInput(f"{path}: not a whole zip file: {printable(str(error), 200)}") from None


def _why(name: str) -> str:
    return "twice" if name in MEMBERS else f"and only {', '.join(MEMBERS)} may be there"


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    most = MEMBERS[info.filename]
    if info.flag_bits & 1:
        raise BadInput(f"{path}: {info.filename} is encrypted")
    with archive.open(info) as member:
        data = member.read(most + 1) if info.file_size <= most else b""
    if len(data) > most or info.file_size > most:
        raise BadInput(f"{path}: {info.filename} unpacks to more than {most} bytes")
    return data


def _decoded(path: Path, name: str, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: {name}: {printable(str(error), 300)}") from None


def _tensors(path: Path, name: str, data: bytes) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{path}: {name}: not safetensors: {printable(str(error), 200)}") from None
