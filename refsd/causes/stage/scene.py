"""A stage's wrong answer beside the right one: find the first wrong output, and test what explains it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.causes.stage.candidates import numbers
from refsd.golden.judge import Answer
from refsd.golden.rounding import Bound
from refsd.stages.stage import Stage, StageInputs

# Of more inputs, some length explains almost any number.
_FEW = 6


class Scene(NamedTuple):
    """A wrong answer of a stage.

    inputs: in float64
    found:  the engine's answer
    truth:  in float64
    honest: the reference under the engine's numerics
    limits: output -> its bound
    """

    stage: Stage
    inputs: StageInputs
    actual: Answer
    truth: Answer
    honest: Answer
    limits: Mapping[str, Bound]

    @property
    def wrong(self) -> str:
        return next((name for name in self.truth if not self.agrees(name, self.truth[name])), "")

    @property
    def numbers(self) -> dict[str, float]:
        """Return the case's numbers: parameters, inputs of one number, and the lengths of small inputs' axes."""
        found = {name: float(value) for name, value, _ in numbers(self.inputs.params)}
        for name, y in self.inputs.tensors.items():
            if y.size == 1 and y.dtype.kind == "f":
                found[name] = float(y.ravel()[0])
        for name, y in self.inputs.tensors.items() if len(self.inputs.tensors) <= _FEW else ():
            for axis, n in enumerate(y.shape):
                if n > 2 and float(n) not in found.values():
                    found[f"the length of axis {axis} of {name}"] = float(n)
        return found

    def agrees(self, name: str, answer: np.ndarray, times: float = 1.0) -> bool:
        """Return True if an output equals `answer` within `times` its bound, and a little for rounding."""
        actual = self.actual[name]
        if actual.shape != answer.shape:
            return False
        limit = self.limits[name].limit
        if self.stage.outputs[name].size is None:
            return np.array_equal(actual, answer)
        if limit.shape != answer.shape:
            limit = np.full(answer.shape, limit.max(initial=0.0))
        return bool(_within(actual, answer, times * limit).all())

    def gain(self, name: str, answer: np.ndarray) -> float:
        """Return the bits by which an answer tells an output better than the truth, in units of what is allowed."""
        size = min(_rms(answer), _rms(self.actual[name]))
        limit = np.broadcast_to(self.limits[name].limit, answer.shape) + 2.0**-20 * size
        far = [np.abs(np.asarray(self.actual[name], np.float64) - y) / limit for y in (self.truth[name], answer)]
        before, after = (np.log2(np.maximum(np.nan_to_num(z, nan=1.0), 1.0)).sum() for z in far)
        return float(before - after)

    def agrees_at(self, name: str, index: int, answer: np.ndarray) -> bool:
        """Return the same for one slice along the first axis, within four times its bound."""
        actual = self.actual[name][index]
        if self.stage.outputs[name].size is None:
            return np.array_equal(actual, answer)
        limit = self.limits[name].limit[index]
        return bool(_within(actual, answer, 4 * limit).all())

    def consistent(self, answer: Answer) -> bool:
        """Return True if the answer matches the outputs, too, that come before the first wrong one."""
        before = [*self.truth][: [*self.truth].index(self.wrong)]
        return all(name in answer and self.agrees(name, np.asarray(answer[name])) for name in before)

    def explained(self, answer: Answer | None) -> bool:
        """Return True if the answer matches the engine's first wrong output, and it or the truth the others."""
        if answer is None or self.wrong not in answer:
            return False
        if not self.agrees(self.wrong, np.asarray(answer[self.wrong])):
            return False
        others = [name for name in self.truth if name != self.wrong]
        return all(
            name in answer
            and (self.agrees(name, np.asarray(answer[name])) or self.agrees(name, np.asarray(self.truth[name])))
            for name in others
        )


def _within(actual: np.ndarray, answer: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return where two outputs are equal within a limit, and a little for rounding; what is infinite is no near.

    The smaller of the two outputs says how much a rounding is: a formula that overflows would allow anything.
    """
    size = np.maximum(np.abs(np.nan_to_num(answer)), min(_rms(answer), _rms(actual)))
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(np.asarray(actual, np.float64) - answer) <= limit + 2.0**-20 * size
    return (near & np.isfinite(answer)) | (actual == answer) | (np.isnan(actual) & np.isnan(answer))


def _rms(y: np.ndarray) -> float:
    finite = y[np.isfinite(y)] if y.dtype.kind == "f" else y
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
