"""Give every verdict of a submission again, and find what does not add up.

A verdict is a function of the metrics. These are held against themselves, against the truth, the bound and the
honest run, which are computed here, and against the outputs: whole, or as sketches. What taps measured is believed
as far as it fits itself: the engine's tensors are not there.
"""

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refsd.cases import CASES
from refsd.corpus import rules, versions
from refsd.corpus.met import unmet
from refsd.golden import verdict
from refsd.golden.examination import Examination
from refsd.golden.judge import Answer, Judges, Standard, Trace
from refsd.golden.metrics import Metrics
from refsd.golden.repeated_requests import OF_REQUESTS
from refsd.golden.report import Result
from refsd.golden.waivers import apply, waive
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.profiles import PROFILES, Numerics
from refsd.submissions.collect import key, plain
from refsd.submissions.form import Evidence, Submission
from refsd.submissions.metrics_fit import contradictions, differences
from refsd.submissions.packing import Parts
from refsd.submissions.sketch_fit import misfits, worst_element

_JUDGED = (verdict.PASS, verdict.FAIL, verdict.DEVIATES, verdict.WAIVED)


class Verified(NamedTuple):
    """
    problems: what does not add up, a line each; empty for a submission that is accepted
    conforms: whether its engines conform, and meet the profile that it claims
    unmet:    why a profile is not met, a line each
    """

    problems: Sequence[str]
    conforms: bool
    unmet: Sequence[str]


class Bench(NamedTuple):
    """What verdicts are given with.

    judges:  the kinds of case
    truth:   the reference's float64 answer to a case
    advance: called with the name of each case that is done
    """

    judges: Judges
    truth: Callable[[str], Answer]
    advance: Callable[[str], None] = lambda name: None


def verify(parts: Parts, bench: Bench) -> Verified:
    """Verify a submission. Nothing in it is believed before it is checked."""
    problems = contradicted(parts)
    if not problems:
        problems = list(_measurements(parts, bench))
    names = versions.profile_names(parts.report.profile) if parts.report.profile and not problems else []
    lacking = unmet(parts.report, names)
    ran = any(r.status != verdict.REFUSED for r in parts.report.results)
    conforms = not problems and ran and not lacking and all(r.conforms for r in parts.report.results)
    return Verified([printable(line, 500) for line in problems], conforms, lacking)


def contradicted(parts: Parts) -> list[str]:
    """List what in a submission contradicts itself, or the corpus; nothing is computed for it."""
    return list(_questions(parts)) or list(_verdicts(parts))


def _questions(parts: Parts) -> Iterator[str]:
    """Whether the same questions were put, under the same rules, and all of them."""
    submission, report = parts.submission, parts.report
    if report.partial:
        yield f"the run was interrupted: {report.partial}"
    try:
        corpus = versions.published(submission.corpus)
        names = versions.profile_names(report.profile) if report.profile else []
        datetime.date.fromisoformat(submission.date)
    except (BadInput, ValueError) as error:
        yield str(error)
        return
    if report.profile and report.profile.partition("/")[0] != submission.corpus:
        yield f"the profile {report.profile} is not of corpus {submission.corpus}"
    if submission.corpus_sha256 != corpus.digest:
        theirs = submission.corpus_sha256[:16]
        yield f"another corpus: {submission.corpus} has sha256 {corpus.digest[:16]}, not {theirs}"
    for name, known in rules.digests(r.op for r in report.results).items():
        if submission.rules.get(name) != known:
            yield f"judged by other rules ({name}), those of refsd {submission.refsd}: judge again with this one"
            break
    if (submission.date, submission.refsd) != (report.date, report.refsd):
        yield "the report is of another day or another refsd than the submission says"
    requested = {r.case for r in report.results}
    for name in sorted(requested):
        if name not in CASES:
            yield f"another corpus: {name}: this refsd has no such case"
        elif submission.cases.get(name) != versions.digest(CASES[name]):
            yield f"another corpus: {name} asks for something else here"
        else:
            continue
        return
    pairs = Counter((r.engine, r.case) for r in report.results)
    for engine, name in (pair for pair, n in pairs.items() if n > 1):
        yield f"{engine}: {name}: two results"
    if any(r.engine not in report.engines for r in report.results) or not report.engines:
        yield "results of an engine that the report does not name, or no engine"
    for engine in report.engines:
        ran = {r.case for r in report.of(engine)}
        lacking = [name for name in names if name not in ran]
        if lacking:
            counts = f"{len(names) - len(lacking)} of the {len(names)} of {report.profile}"
            yield f"{engine}: too few cases: {counts}; {lacking[0]} is missing"
    if any(r.op != CASES[r.case].op for r in report.results):
        yield "a result names another operation than its case"


def _verdicts(parts: Parts) -> Iterator[str]:
    """Whether each result is what its metrics give."""
    evidence: dict[tuple[str, str], Evidence] = {}
    for one in parts.evidence:
        if (one.engine, one.case) in evidence:
            yield f"{one.engine}: {one.case}: two measurements"
        evidence[one.engine, one.case] = one
    for pair in evidence.keys() - {(r.engine, r.case) for r in parts.report.results}:
        yield f"{pair[0]}: {pair[1]}: measured, but not in the report"
    for r in parts.report.results:
        one = evidence.get((r.engine, r.case))
        for line in _wrong_verdict(r, one, parts.submission):
            yield f"{r.engine}: {r.case}: {line}"
        if one is not None:
            for m in (*one.taps, *one.outputs):
                for line in contradictions(m):
                    yield f"{r.engine}: {r.case}: {m.output}: metrics that cannot be: {line}"


def _wrong_verdict(r: Result, one: Evidence | None, of: Submission) -> Iterator[str]:
    if r.status not in (*_JUDGED, verdict.REFUSED, verdict.ERROR):
        yield f"unknown status {r.status!r}"
        return
    if one is None:
        if r.status == verdict.PASS or (r.status == verdict.WAIVED and not _waived(r, of)):
            yield f"{r.status}, but nothing was measured"
        return
    if not 0 <= one.numerics < len(of.numerics) or of.numerics[one.numerics].get("name") != r.numerics:
        yield f"unknown numerics {r.numerics!r}: the submission does not describe them"
        return
    if not 0 <= one.unknown <= len(one.outputs) or not all(m.unwanted for m in one.outputs[: one.unknown]):
        yield "unknown taps that are not there"
        return
    given = Examination(Trace(one.taps), one.outputs, one.unknown).verdict
    expected = _status(given, r)
    if r.status not in expected:
        yield f"the verdict is {r.status}, the metrics give {' or '.join(expected)} (margin {given.margin:.3g})"
    elif r.status == verdict.WAIVED and not _waived(r, of):
        yield f"waived, but no waiver in the submission covers it on {of.date}"
    elif _of_requests(r) or r.status == verdict.REFUSED:
        return
    elif r.criterion != given.criterion or abs(r.margin - given.margin) > 1e-9 * given.margin:
        yield f"margin {r.margin:.6g} ({r.criterion}), the metrics give {given.margin:.6g} ({given.criterion})"


def _status(given: verdict.Judgement, r: Result) -> tuple[str, ...]:
    """The statuses that a verdict allows."""
    if given.criterion == verdict.NO_WITNESS:
        return (verdict.REFUSED,)
    if given.passed:
        return (verdict.FAIL, verdict.WAIVED) if _of_requests(r) else (verdict.PASS,)
    return (verdict.FAIL, verdict.WAIVED, verdict.DEVIATES) if r.deviations else (verdict.FAIL, verdict.WAIVED)


def _of_requests(r: Result) -> bool:
    """Return True if a repeated request showed the failure, which the metrics of the first answer need not show."""
    return bool(r.causes) and {*r.causes} <= {*OF_REQUESTS}


def _waived(r: Result, of: Submission) -> bool:
    day = datetime.date.fromisoformat(of.date)
    if r.deviations:
        return apply(of.waivers, r.deviations, r.engine, r.case, day)[0]
    return waive(of.waivers, r, day)[0]


def _measurements(parts: Parts, bench: Bench) -> Iterator[str]:
    """Whether the metrics are of this truth, this bound and these outputs. The honest runs are computed here."""
    known: list[Numerics] = []
    for said in parts.submission.numerics:
        try:
            known.append(_numerics(said))
        except BadInput as error:
            yield str(error)
            return
    by_case: dict[str, list[tuple[int, Evidence]]] = {}
    for number, one in enumerate(parts.evidence):
        by_case.setdefault(one.case, []).append((number, one))
    for name, group in by_case.items():
        case, truth = CASES[name], bench.truth(name)
        judge, inputs = bench.judges.of(case), case.realize()
        honest: dict[int, Answer] = {}
        for number, one in group:
            if one.numerics not in honest:
                try:
                    honest[one.numerics] = judge.answer(case, inputs, Arithmetic(known[one.numerics]))
                except Exception as error:  # numerics from a file need not fit the case
                    why = f"the reference cannot compute it under these numerics: {_line(error)}"
                    yield f"{one.engine}: {name}: {why}"
                    return
            standard = Standard(case, inputs, truth, honest[one.numerics], known[one.numerics])
            for line in _mismatches(parts, standard, bench, number, one):
                yield f"{one.engine}: {name}: {line}"
        bench.advance(name)


def _numerics(said: Mapping[str, Any]) -> Numerics:
    """Read declared numerics. Raises BadInput for what refsd does not know."""
    try:
        numerics = msgspec.convert(said, Numerics)
        assert numerics.compute_dtype and numerics.storage_dtype
    except (msgspec.ValidationError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"unknown numerics {printable(str(said.get('name')), 80)!r}: {_line(error)}") from None
    profile = PROFILES.get(numerics.name)
    if profile is not None and plain(profile) != plain(numerics):
        raise BadInput(f"unknown numerics: {numerics.name} is described otherwise than refsd's own profile")
    return numerics


def _mismatches(parts: Parts, standard: Standard, bench: Bench, number: int, one: Evidence) -> Iterator[str]:
    judge = bench.judges.of(standard.case)
    wanted = {m.output: m for m in one.outputs[one.unknown :] if not m.unwanted}
    kept = parts.outputs if one.whole else parts.sketches
    found = {name: kept[f"{number}/{name}"] for name in standard.truth if f"{number}/{name}" in kept}
    if one.whole:
        yield from _of_whole(judge.measure(standard, found), wanted)
        return
    limits = judge.limits(standard)
    for here in judge.measure(standard, standard.honest):
        m = wanted.get(here.output)
        if m is None:
            yield f"output {here.output!r}: no metrics"
            continue
        truth = standard.truth[here.output]
        limit = np.broadcast_to(limits[here.output], truth.shape) if here.bounded else None
        lines = [*differences(m, here, False), *worst_element(m, truth, limit)]
        if m.engine is not None and not lines:
            if here.output not in found:
                lines = ["its sketch is missing"]
            else:
                lines = list(misfits(key(standard, here.output), found[here.output], m, truth, limit))
        if lines:
            yield f"{here.output}: {lines[0]}"


def _of_whole(measured: Sequence[Metrics], wanted: Mapping[str, Metrics]) -> Iterator[str]:
    for here in measured:
        m = wanted.get(here.output)
        if m is None:
            yield f"output {here.output!r}: no metrics"
        elif here.found is None and m.found is not None:
            yield f"output {here.output!r} is missing in the file"
        else:
            for line in differences(m, here, True):
                yield f"{here.output}: {line}"
                break


def _line(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__, 200)
