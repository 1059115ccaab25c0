"""Collect what a submission needs of each answer, while a run judges it."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from refsd.golden.conform import Answered
from refsd.golden.engine import Engine
from refsd.golden.judge import Answer, Judges, Standard
from refsd.golden.metrics import Metrics
from refsd.numerics.profiles import Float16Sums, Numerics
from refsd.submissions.form import WHOLE, WHOLE_OWN, Evidence
from refsd.submissions.sketch import sketch, weights


class Collector:
    """What is measured of a run's answers.

    judges: the kinds of case, which give the bounds
    """

    def __init__(self, judges: Judges, engines: Sequence[Engine]):
        self._judges = judges
        self._engines = {engine.name: engine for engine in engines}
        self.evidence: list[Evidence] = []
        self.outputs: dict[str, np.ndarray] = {}
        self.sketches: dict[str, np.ndarray] = {}
        self.numerics: list[dict[str, Any]] = []
        self.deviations: dict[str, list[str]] = {}

    def add(self, answered: Answered) -> None:
        """Keep an answer's metrics, and its outputs, whole or as sketches."""
        standard, examined = answered.standard, answered.examined
        said = plain(standard.numerics)
        if said not in self.numerics:
            self.numerics.append(said)
        declared = [d.name for d in self._engines[answered.engine].deviations(standard.case)]
        known = self.deviations.setdefault(answered.engine, [])
        known += [name for name in declared if name not in known]
        number, whole = len(self.evidence), travels_whole(standard, examined.outputs)
        if whole:
            self.outputs |= {
                f"{number}/{name}": stored(y) for name, y in answered.actual.items() if name in standard.truth
            }
        else:
            self.sketches |= sketches(self._judges, standard, answered.actual, examined.outputs, number)
        self.evidence.append(
            Evidence(
                answered.engine,
                standard.case.name,
                self.numerics.index(said),
                examined.unknown,
                whole,
                list(examined.outputs),
                list(examined.trace.taps),
            )
        )


def travels_whole(standard: Standard, metrics: Sequence[Metrics]) -> bool:
    """Whether an answer's outputs are small enough.

    A trajectory's steps are judged from its own latents, and a model's outputs in units that depend on them.
    """
    own = standard.case.op == "trajectory" or not all(m.bounded for m in metrics)
    return sum(y.size for y in standard.truth.values()) <= (WHOLE_OWN if own else WHOLE)


def stored(y: np.ndarray) -> np.ndarray:
    """As float32 if that loses nothing, else as float64."""
    y = np.ascontiguousarray(y, np.float64)
    with np.errstate(over="ignore"):
        short = y.astype(np.float32)
    return short if np.array_equal(short, y, equal_nan=True) else y


def sketches(
    judges: Judges, standard: Standard, actual: Answer, metrics: Sequence[Metrics], number: int
) -> dict[str, np.ndarray]:
    """Sketch the outputs that have the truth's shape. -> "<number>/<output>" -> sums, then samples"""
    limits = judges.of(standard.case).limits(standard)
    made = {}
    for m in metrics:
        if m.output in standard.truth and m.output in actual and m.found == m.shape:
            truth = standard.truth[m.output]
            w = weights(truth, limits[m.output] if m.bounded else None)
            made[f"{number}/{m.output}"] = np.concatenate(
                sketch(key(standard, m.output), actual[m.output], truth, w)
            )
    return made


def key(standard: Standard, output: str) -> str:
    """Return what seeds an output's sketch."""
    return f"{standard.case.name}/{output}"


def plain(numerics: Numerics) -> dict[str, Any]:
    """Return numerics as JSON has them."""
    return {field.name: _plain(getattr(numerics, field.name)) for field in fields(numerics)}


def _plain(value: Any) -> Any:
    if isinstance(value, Float16Sums):
        return {"step": value.step, "run": value.run}
    if isinstance(value, Mapping):
        return {key: _plain(of) for key, of in value.items()}
    return list(value) if isinstance(value, tuple) else value
