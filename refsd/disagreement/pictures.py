"""Compare two ways to draw a picture, stage by stage; judge programs and dumps under their own convention."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from refsd.conventions import CONVENTIONS, DEFAULT
from refsd.disagreement.picture_causes import TEXT, TIMESTEPS, explain_root, explain_wrong, inherited
from refsd.disagreement.picture_runs import PictureRun, Tensors, in_order, read_picture, run_picture, title
from refsd.disagreement.plan_settings import differences
from refsd.golden.taps import measure_taps
from refsd.golden.verdict import INFINITE, judge_output
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, PROFILES, TORCH_BF16, TORCH_F16, TORCH_F32, Numerics
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import FLOW_SCHEDULES

# Two float64 runs of the reference may differ only in the order of sums.
_FLOAT64 = 1e-11
# Error of any float32 engine: a few roundings; for noise levels, a table's root, quotient and interpolation.
_ROUNDING, _LEVEL_ROUNDING = 2.0**-22, 2.0**-18
# The first latent is the noise times a level: the level's error is its own.
_OF_LEVELS = ("sigmas", "steps.0.x")
# Share of the first timestep below which timesteps count as equally near 0.
_NO_TIME = 1e-3
# Stages that depend only on the settings, not on another stage.
_ROOTS = (*TEXT, "sigmas", "noise", "init", "steps.0.x")


PlanOf = Callable[..., tuple[Pipeline, Plan]]
# convention whose program can be run with a tap -> the program's numerics
PROGRAMS = {"sdcpp": GGML_CPU}
# diffusers' pipelines, that draw in this process -> their numerics
LIBRARIES = {"torch": TORCH_F32, "torch-f16": TORCH_F16, "torch-bf16": TORCH_BF16}


class Side(NamedTuple):
    """One of the two ways to draw the picture.

    name:       as given on the command line
    convention: the convention that resolves the settings
    profile:    the numerics profile
    dump:       file with recorded tensors
    program:    program that draws the picture
    library:    True if diffusers draws it; without dump, program and library the reference does
    """

    name: str
    convention: str
    profile: str
    dump: Path | None = None
    program: Path | None = None
    library: bool = False

    @property
    def draws(self) -> bool:
        """True if a program or a library draws the picture."""
        return self.program is not None or self.library

    @property
    def judged(self) -> bool:
        """True if the tensors are not the reference's: from a dump, a program or a library."""
        return self.dump is not None or self.draws

    @classmethod
    def of(cls, argument: str) -> "Side":
        """Parse sdcpp, diffusers:torch-f16, sdcpp:SD_CLI, torch, dump:FILE:torch-f16:diffusers. Raises BadInput."""
        if argument in LIBRARIES:
            return cls(argument, "diffusers", LIBRARIES[argument].name, library=True)
        kind, _, rest = argument.partition(":")
        words = rest.split(":") if rest else []
        convention, profile = DEFAULT.name if kind == "dump" else kind, FLOAT64.name
        profile = FLOAT32.name if kind == "dump" else profile
        while words and words[-1] in (*PROFILES, *CONVENTIONS):
            word = words.pop()
            convention, profile = (word, profile) if word in CONVENTIONS else (convention, word)
        path = ":".join(words)
        if kind == "dump" and path:
            return cls(argument, convention, profile, Path(path))
        if kind in PROGRAMS and path and convention == kind:
            given = argument.endswith(f":{profile}")
            return cls(argument, kind, profile if given else PROGRAMS[kind].name, program=Path(path))
        if kind not in CONVENTIONS or path or convention != kind:
            known = [*CONVENTIONS, *LIBRARIES, "dump"]
            raise BadInput(
                f"{argument}{did_you_mean(kind, known)}: for a picture expected a convention "
                f"({', '.join(CONVENTIONS)}), perhaps with :PROFILE, sdcpp:SD_CLI, {', '.join(LIBRARIES)}, or "
                "dump:FILE[:PROFILE][:CONVENTION]"
            )
        return cls(argument, convention, profile)


class Setting(msgspec.Struct, frozen=True):
    """A setting that differs between the two sides. a, b: its values in words"""

    name: str
    a: str
    b: str


class Stage(msgspec.Struct, frozen=True):
    """One tensor of the picture, compared between the sides.

    title:     description of the tensor
    distance:  |A - B| / |B|; None if the shapes differ, a side lacks the tensor, or it is not finite
    explained: the distance that the sides' numerics explain
    shapes:    side -> shape, for the sides that have the tensor
    margins:   side -> margin of its verdict against the reference under its own convention; above 1 it is wrong
    """

    name: str
    title: str
    distance: float | None
    explained: float
    shapes: dict[str, tuple[int, ...]]
    margins: dict[str, float]

    @property
    def compared(self) -> bool:
        return len(self.shapes) == 2

    @property
    def parts(self) -> bool:
        return self.compared and (self.distance is None or self.distance > self.explained)


class Root(msgspec.Struct, frozen=True):
    """A stage that differs by itself, not because of an earlier one. causes: phrases with the settings at fault"""

    stage: str
    title: str
    causes: list[str]


class PictureDisagreement(msgspec.Struct, frozen=True):
    """The comparison of two ways to draw a picture.

    settings:  settings that differ
    stages:    in the order of computation
    roots:     stages that differ by themselves
    inherited: a sentence on whether the later stages only inherit the difference; "" if unknown
    wrong:     side -> its first wrong stage
    reasons:   side -> why that stage is wrong, in words
    """

    refsd: str
    a: str
    b: str
    settings: list[Setting]
    stages: list[Stage]
    roots: list[Root] = []
    inherited: str = ""
    wrong: dict[str, str] = {}
    reasons: dict[str, str] = {}

    @property
    def parting(self) -> Stage | None:
        """The first stage that differs."""
        return next((stage for stage in self.stages if stage.parts), None)

    @property
    def agree(self) -> bool:
        return self.parting is None and not self.wrong


class _Answer(NamedTuple):
    """A side's tensors and the reference's.

    found:  the side's tensors
    truth:  the reference in float64, under the side's convention
    honest: the reference under the side's convention and numerics
    """

    side: Side
    actual: Tensors
    truth: PictureRun
    honest: PictureRun

    def honest_error(self, name: str) -> float:
        """Return the relative L2 distance between the honest run and the truth; 0 if a tensor is missing."""
        apart = distance(self.honest.tensors.get(name), self.truth.tensors.get(name), self.least_size(name))
        return 0.0 if apart is None else apart

    def least_size(self, name: str) -> float:
        """Return what a timestep's error is at least measured by: the last may be 0, or 1e-15."""
        first = self.truth.tensors.get(f"calls.0{TIMESTEPS}") if name.endswith(TIMESTEPS) else None
        return 0.0 if first is None else _NO_TIME * float(np.linalg.norm(first))


def disagree(
    sides: tuple[Side, Side],
    plan_of: PlanOf,
    drawn: Callable[[Side], Tensors],
    refsd: str,
    say: Callable[[str], None] = lambda what: None,
) -> PictureDisagreement:
    """Compare two ways to draw a picture.

    plan_of: (convention, numerics, replaced settings) -> the model opened with these numerics, and the settings as
             the convention resolves them
    drawn:   returns the tensors of a side that a program or a library draws
    refsd:   version of the reference
    say:     called with a phrase for progress

    Raises BadInput if a dump is invalid, or if a setting cannot be used.
    """
    given: dict[Side, Tensors] = {}
    for side in sides:
        if side.dump is not None:
            given[side] = read_picture(side.dump)
        elif side.draws:
            say(f"drawing with {side.program.name if side.program is not None else side.name}")
            given[side] = in_order(drawn(side))
    runs: dict[tuple[str, str], PictureRun] = {}

    def run(convention: str, profile: str) -> PictureRun:
        if (convention, profile) not in runs:
            say(f"drawing as {convention} in {profile}")
            runs[convention, profile] = run_picture(*plan_of(convention, profile))
        return runs[convention, profile]

    def answer(side: Side) -> _Answer:
        truth, honest = run(side.convention, FLOAT64.name), run(side.convention, side.profile)
        return _Answer(side, given.get(side, honest.tensors), truth, honest)

    a, b = (answer(side) for side in sides)
    names = [f"{side.name} ({letter})" for side, letter in zip(sides, "AB", strict=True)]
    names = [side.name for side in sides] if sides[0].name != sides[1].name else names
    judged = [_judge(one) for one in (a, b)]
    stages = list(_stages(names, a, b, [margins for margins, _ in judged]))
    wrong, reasons = {}, {}
    for name, one, (_, failures) in zip(names, (a, b), judged, strict=True):
        if failures:
            wrong[name], reason = next(iter(failures.items()))
            causes = _explain_wrong(one, wrong[name], plan_of)
            reasons[name] = f"{reason}; the reference agrees if {' or if '.join(causes)}" if causes else reason
    settings = [Setting(*one) for one in differences(a.truth.plan, b.truth.plan)]
    outcome = PictureDisagreement(refsd, names[0], names[1], settings, stages, wrong=wrong, reasons=reasons)
    pipe, _ = plan_of(sides[0].convention, FLOAT64.name)
    say("finding out why")
    roots = list(_roots(pipe, outcome, a, b))
    conventions_alone = settings and not any(side.judged for side in sides)
    rest = inherited(pipe, a.truth, b.truth, distance, _FLOAT64) if conventions_alone and roots else ""
    return msgspec.structs.replace(outcome, roots=roots, inherited=rest)


def distance(x: np.ndarray | None, y: np.ndarray | None, least: float = 0.0) -> float | None:
    """Compute |x - y| / |y| (`least` if more); None if one is missing, not finite or of other shape."""
    if x is None or y is None or x.shape != y.shape:
        return None
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    apart = float(np.linalg.norm(x - y))
    size = max(float(np.linalg.norm(y)), least)
    return apart / size if size else min(apart, INFINITE)


def _stages(names: list[str], a: _Answer, b: _Answer, margins: list[dict[str, float]]) -> Iterator[Stage]:
    order = dict.fromkeys([*a.truth.tensors, *b.truth.tensors])
    for name in order:
        have = {side: one.actual[name] for side, one in zip(names, (a, b), strict=True) if name in one.actual}
        if not have:
            continue
        exact = {a.side.profile, b.side.profile} == {FLOAT64.name}
        least = _FLOAT64 if exact else _least(name)
        explained = max(4 * (a.honest_error(name) + b.honest_error(name)), least)
        yield Stage(
            name,
            title(name),
            distance(*have.values(), least=b.least_size(name)) if len(have) == 2 else None,
            min(explained, INFINITE),
            {side: y.shape for side, y in have.items()},
            {side: of[name] for side, of in zip(names, margins, strict=True) if name in of},
        )


def _judge(one: _Answer) -> tuple[dict[str, float], dict[str, str]]:
    """Judge the tensors of a dump or program. -> name -> margin; name -> reason of the failing ones, in order"""
    if not one.side.judged:
        return {}, {}
    numerics: Numerics = PROFILES[one.side.profile]
    losses = {name: _least(name) for name in one.truth.tensors}
    measured = measure_taps(one.actual, one.truth.tensors, one.honest.tensors, numerics, losses)
    judged = {m.output: judge_output(m) for m in measured}
    failures = {name: judgement.reason for name, judgement in judged.items() if not judgement.passed}
    return {name: judgement.margin for name, judgement in judged.items()}, failures


def _explain_wrong(one: _Answer, stage: str, plan_of: PlanOf) -> list[str]:
    """Find other conventions or schedules with which the reference agrees at the side's first wrong stage."""
    if not stage.startswith(_ROOTS):
        return []
    own = one.side.convention
    pipe, plan = plan_of(own, FLOAT64.name)
    others = {name: plan_of(name, FLOAT64.name)[1] for name in CONVENTIONS if name != own}
    if stage == "sigmas":
        for schedule in SCHEDULES if plan.prediction else FLOW_SCHEDULES:
            with suppress(BadInput):
                others[schedule] = plan_of(own, FLOAT64.name, schedule=schedule)[1]
    limit = max(4 * one.honest_error(stage), _least(stage))
    return explain_wrong(pipe, stage, plan, others, one.actual[stage], distance, limit)


def _least(name: str) -> float:
    if name.startswith("tokens."):
        return _FLOAT64
    return _LEVEL_ROUNDING if name in _OF_LEVELS else _ROUNDING


def _roots(pipe: Pipeline, outcome: PictureDisagreement, a: _Answer, b: _Answer) -> Iterator[Root]:
    """Yield the stages that differ by themselves: those of _ROOTS that differ, else the first stage that does."""
    parting = [stage for stage in outcome.stages if stage.parts]
    own = [stage for stage in parting if stage.name.startswith(_ROOTS)] or parting[:1]
    seen: set[str] = set()
    for stage in own:
        kind = "text" if stage.name.startswith(TEXT) else stage.name
        if kind not in seen:
            seen.add(kind)
            limit = max(stage.explained, _least(stage.name))
            target = b.actual[stage.name]
            causes = explain_root(pipe, stage.name, a.truth.plan, b.truth.plan, target, distance, limit)
            yield Root(stage.name, stage.title, causes)
