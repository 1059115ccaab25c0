"""Profile an engine: ask every question, find the profile that answers alike, check what the engine declares."""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.engine import Engine, EngineFailure
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import FLOAT64, PROFILES, Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.profiling.question import Finding, Probe, Questioner, Refused

# What an engine may round to its storage type, and the reference does not.
_STORED = {("attention", "probabilities"), ("attention", "scores")}
# Algorithms between which an engine may choose under the same numerics.
_CHOICE = re.compile(r"direct or by patches|Winograd .* in float32")

Key = tuple[str, str]


class Unasked(msgspec.Struct, frozen=True):
    """A question without an answer.

    why: the engine's reason, or its last words
    """

    op: str
    question: str
    why: str


class Answers(msgspec.Struct):
    """What an engine answered.

    refused: questions that it does not take
    failed:  questions at which it failed
    """

    findings: list[Finding] = []
    refused: list[Unasked] = []
    failed: list[Unasked] = []

    def declared(self) -> dict[Key, Finding]:
        """The findings that Numerics can express."""
        return {(f.op, f.aspect): f for f in self.findings if f.declared}


class Disagreement(msgspec.Struct, frozen=True):
    """A finding that differs from what the reference shows under some Numerics."""

    op: str
    aspect: str
    found: str
    expected: str
    evidence: str


class Declaration(msgspec.Struct, frozen=True):
    """What an engine declares, by the names of its numerics, and what contradicts that."""

    numerics: list[str]
    disagreements: list[Disagreement]


class Match(msgspec.Struct, frozen=True):
    """A profile beside an engine."""

    profile: str
    disagreements: list[Disagreement]


def ask_all(engine: Engine, probes: Sequence[Probe], done: Callable[[str], None] = lambda name: None) -> Answers:
    """Put questions to an engine. A question that it refuses, or at which it dies, is noted.

    done: called with the name of each question that is over
    """
    answers, questioner = Answers(), Questioner(engine)
    for probe in probes:
        try:
            with np.errstate(all="ignore"):
                answers.findings += probe.ask(questioner)
        except Refused as reason:
            answers.refused.append(Unasked(probe.op, probe.name, str(reason)))
        except EngineFailure as error:
            answers.failed.append(Unasked(probe.op, probe.name, str(error)))
        done(f"{probe.op}: {probe.name}")
    return answers


class _Honest:
    """An engine that computes every case as another engine declares to.

    declared: the names of the numerics
    """

    name, version = "declared", ""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.declared: dict[str, None] = {}

    def refuses(self, case: Case) -> str | None:
        return self._engine.refuses(case)

    def numerics(self, case: Case) -> Numerics:
        return self._engine.numerics(case)

    def deviations(self, case: Case):
        return self._engine.deviations(case)

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        numerics = self.numerics(case)
        self.declared[numerics.name] = None
        return Reference(numerics, self.deviations(case)).run(case, inputs)


def expected_of(numerics: Numerics, probes: Sequence[Probe]) -> Answers:
    """What the reference answers under some Numerics."""
    with one_answer(FLOAT64):
        return ask_all(Reference(numerics), probes)


def _against(found: Answers, expected: Answers, free: bool) -> list[Disagreement]:
    """What differs, but for roundings to the storage type that an engine may make and the reference does not.

    free: allow what an engine may choose, too
    """
    there, stored = expected.declared(), {f.op: f.value for f in expected.findings if f.aspect == "result"}
    return [
        Disagreement(*key, finding.value, there[key].value, finding.evidence)
        for key, finding in found.declared().items()
        if key in there
        and finding.value != there[key].value
        and not (key in _STORED and finding.value == stored.get(key[0]))
        and not (free and _CHOICE.fullmatch(finding.value) and _CHOICE.fullmatch(there[key].value))
    ]


def against_declaration(engine: Engine, found: Answers, probes: Sequence[Probe]) -> Declaration:
    """Hold findings against what an engine would answer that computes as this one declares."""
    honest = _Honest(engine)
    with one_answer(FLOAT64):
        expected = ask_all(honest, probes)
    return Declaration(list(honest.declared), _against(found, expected, free=True))


def against(found: Answers, numerics: Numerics, probes: Sequence[Probe]) -> list[Disagreement]:
    """Hold findings against Numerics."""
    return _against(found, expected_of(numerics, probes), free=True)


def matches(
    found: Answers, probes: Sequence[Probe], done: Callable[[str], None] = lambda name: None
) -> list[Match]:
    """Hold findings against every profile, the nearest first. done: called with the name of each profile"""
    held = []
    for name, numerics in PROFILES.items():
        held.append(Match(name, _against(found, expected_of(numerics, probes), free=False)))
        done(name)
    return sorted(held, key=lambda match: len(match.disagreements))
