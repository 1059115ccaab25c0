"""Draw the conclusions from an engine's answers, and put them into words."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from refsd import __version__
from refsd.golden.engine import Engine
from refsd.golden.wording import counted
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.profiles import FLOAT32, PROFILES
from refsd.profiling.described import described
from refsd.profiling.profile import (
    Answers,
    Declaration,
    Disagreement,
    Match,
    Unasked,
    against,
    against_declaration,
    matches,
)
from refsd.profiling.question import Finding, Probe

_OF_TYPE = re.compile(r"(?:(activations|sum), )?(\w+) weights")
_NEAREST = 3  # profiles in a report


class Report(msgspec.Struct, frozen=True):
    """
    engine, version: as the engine has them
    refsd:       version
    findings:    what was asked and answered
    refused:     questions that the engine does not take
    failed:      questions at which it failed
    profiles:    the nearest of refsd's, those without a disagreement first
    declaration: what the engine declares, and what contradicts it
    numerics:    the findings as an exec engine's description declares them
    unsaid:      findings that differ from these numerics all the same
    """

    engine: str
    version: str
    refsd: str
    findings: list[Finding]
    refused: list[Unasked]
    failed: list[Unasked]
    profiles: list[Match]
    declaration: Declaration
    numerics: dict[str, Any]
    unsaid: list[Disagreement]

    @property
    def agrees(self) -> bool:
        return not self.declaration.disagreements and not self.failed


def conclude(
    engine: Engine, answers: Answers, probes: Sequence[Probe], done: Callable[[str], None] = lambda name: None
) -> Report:
    """Find the nearest profiles and hold the declaration against the answers.

    done: called with the name of each profile that was tried

    Raises BadInput if no question was answered.
    """
    if not answers.findings:
        why = next((f"{one.op}: {one.why}" for one in (*answers.failed, *answers.refused)), "nothing was asked")
        raise BadInput(f"{engine.name} answered no question: {why}")
    # A question that the engine did not answer need not be put to the reference.
    silent = {(one.op, one.question) for one in (*answers.refused, *answers.failed)}
    probes = [probe for probe in probes if (probe.op, probe.name) not in silent]
    held = matches(answers, probes, done)
    told = [described(answers, PROFILES[held[0].profile])]
    unsaid = [against(answers, told[0][0], probes)]
    if unsaid[0] and held[0].profile != FLOAT32.name:  # whose other fields claim nothing
        told.append(described(answers, FLOAT32))
        unsaid.append(against(answers, told[1][0], probes))
    best = min(range(len(told)), key=lambda i: (len(unsaid[i]), -i))
    return Report(
        engine.name,
        engine.version,
        __version__,
        answers.findings,
        answers.refused,
        answers.failed,
        held[: max(_NEAREST, sum(not match.disagreements for match in held))],
        against_declaration(engine, answers, probes),
        told[best][1],
        unsaid[best],
    )


def as_lines(report: Report) -> Iterator[str]:
    """The report for a terminal."""
    yield printable(f"{report.engine} {report.version}: {counted(len(report.findings), 'finding')}")
    for op in dict.fromkeys(finding.op for finding in report.findings):
        yield ""
        yield op
        rows = _rows([finding for finding in report.findings if finding.op == op])
        for aspect, value, evidence in rows:
            yield printable(f"  {aspect:26} {value:26} {evidence}")
    for head, unasked in (("not asked", report.refused), ("failed", report.failed)):
        for why in dict.fromkeys(one.why for one in unasked):
            questions = ", ".join(f"{one.op}: {one.question}" for one in unasked if one.why == why)
            yield printable(f"{head}: {questions} ({why})")
    yield ""
    yield _nearest(report)
    yield from _declared(report.declaration)
    yield _to_declare(report)
    for one in report.unsaid:
        yield f"  which does not say: {_disagreement(one)}"


def _to_declare(report: Report) -> str:
    """The line for an exec engine's description, and where it belongs."""
    said = report.numerics if len(report.numerics) > 1 else report.numerics["like"]
    ops = {finding.op for finding in report.findings}
    place = f"in ops.{ops.pop()}" if len(ops) == 1 else "for all operations, or in ops.NAME for one"
    return (
        f'to declare it in an exec engine\'s description, {place}: "numerics": {msgspec.json.encode(said).decode()}'
    )


def _rows(findings: list[Finding]) -> Iterator[tuple[str, str, str]]:
    """Join the findings of storage types that are alike. -> aspect, value, evidence"""
    alike: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for finding in findings:
        match = _OF_TYPE.fullmatch(finding.aspect)
        aspect, kind = (match[1] or "values", match[2]) if match else (finding.aspect, "")
        alike.setdefault((aspect, finding.value), []).append((kind, finding))
    for (aspect, value), members in alike.items():
        kinds = " ".join(kind for kind, _ in members if kind)
        yield aspect, value, f"{f'({kinds} weights) ' if kinds else ''}{members[0][1].evidence}"


def _nearest(report: Report) -> str:
    same = [match.profile for match in report.profiles if not match.disagreements]
    if same:
        return f"agrees with {', '.join(same)}"
    nearest = report.profiles[0]
    n = sum(finding.declared for finding in report.findings)
    differing = "; ".join(_disagreement(one) for one in nearest.disagreements[:_NEAREST])
    more = len(nearest.disagreements) - _NEAREST
    rest = f"; and {more} more" if more > 0 else ""
    return f"nearest to {nearest.profile}, but for {len(nearest.disagreements)} of {n} findings: {differing}{rest}"


def _declared(declaration: Declaration) -> Iterator[str]:
    names = printable("; ".join(declaration.numerics))
    if not declaration.disagreements:
        yield f"declares {names}: nothing contradicts it"
        return
    yield f"declares {names}, which these contradict:"
    for one in declaration.disagreements:
        yield printable(f"  {_disagreement(one)} ({one.evidence})")


def _disagreement(one: Disagreement) -> str:
    return f"{one.op}, {one.aspect}: {one.found}, not {one.expected}"
