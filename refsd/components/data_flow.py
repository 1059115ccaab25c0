"""The data flow of a model: which operation takes which result, read off a run of its code.

Every operation runs, and then its result is replaced by its mark, a number of its own in each element. Models move
elements (reshape, transpose, split, concatenate) and compute only with a Module's operations, so the marks in an
operation's arguments are those of the operations that it takes them from.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.components import COMPONENTS, load
from refsd.golden.case import Case
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.weights.checkpoint import open_checkpoint
from refsd.weights.model_files import model_files

_MODELS = str(Path(sys.modules[Module.__module__].__file__ or "").parent / "models")
_MARK = 2.0**20  # marks are larger than weights, angles and masks
_CONSTANTS = {"angle", "mask", "diagonal", "sinks", "self", "name"}  # parameters that no operation computes


class Step(NamedTuple):
    """An operation that ran, or an input of the model.

    name:   of its tap
    op:     its name; "" for an input
    shape:  of its result
    takes:  parameter, and number of the step whose result it takes
    line:   file and line of the model's code that calls it
    given:  parameter, shape of its array, and a number that equal views of one array share
    parts:  parameter, and which of a result's equal parts it takes: "part 1 of 6 of "
    """

    name: str
    op: str
    shape: tuple[int, ...]
    takes: tuple[tuple[str, int], ...] = ()
    line: tuple[str, int] = ("", 0)
    given: tuple[tuple[str, tuple[int, ...], int], ...] = ()
    parts: tuple[tuple[str, str], ...] = ()


class Run(NamedTuple):
    """A model's run.

    steps:     inputs, then operations in order of computation
    outputs:   numbers of the steps that the model's results come from
    arguments: block -> number of a step outside -> the block's name for its result
    shapes:    block -> argument -> its shape
    blocks:    the outputs of blocks, in order, each with the steps that it comes from
    """

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    arguments: dict[str, dict[int, str]]
    shapes: dict[str, dict[str, tuple[int, ...]]]
    blocks: tuple[Step, ...] = ()


class _Recorder(Taps):
    """Taps that keep the wiring and no numbers."""

    def __init__(self):
        super().__init__(pattern="", ops=True)
        self.steps: list[Step] = []
        self.blocks: list[Step] = []
        self.arguments: dict[str, dict[int, str]] = {}
        self.shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        self.views: dict[tuple, tuple[int, np.ndarray]] = {}  # arrays are kept: none takes another's address

    def mark(self, step: Step) -> np.ndarray:
        self.steps.append(step)
        return np.full(step.shape, _MARK + len(self.steps))

    def take(self, argument: str, value: np.ndarray) -> np.ndarray:
        """Return an input of the model as its marks; token ids and masks, which are integers, as they are."""
        marks = self.mark(Step(argument, "", value.shape))
        return value if value.dtype.kind in "iu" else marks

    def view(self, value: np.ndarray) -> int:
        """Return a number that equal views of one array share."""
        return self.views.setdefault((value.ctypes.data, value.shape, value.strides), (len(self.views), value))[0]

    def sources(self, *values: Any) -> list[int]:
        """Return the numbers of the steps whose marks are in arrays, as they come there, tuples included."""
        found: list[int] = []
        for value in values:
            if isinstance(value, tuple | list):
                found += self.sources(*value)
            elif isinstance(value, np.ndarray) and value.dtype == np.float64:
                marks, first = np.unique(value, return_index=True)
                found += [i for mark in marks[np.argsort(first)] if (i := self._source(mark)) is not None]
        return list(dict.fromkeys(found))

    def _source(self, mark: float) -> int | None:
        if not np.isfinite(mark):  # of a mask
            return None
        # The time is an input that models compute with outside of operations: 1 - t, 1000 t.
        for number in (mark, mark / 1000, 1 - mark, 1 - mark / 1000, -mark):
            i = number - _MARK - 1
            if i == int(i) and 0 <= i < len(self.steps):
                return int(i)
        return None

    def record(self, name, value):
        caller = sys._getframe(1)
        frame = (caller.f_back if caller.f_code.co_name == "<listcomp>" and caller.f_back else caller).f_locals
        y = super().record(name, value)
        if "fn" in frame and frame["m"].prefix:
            takes = tuple(("out", source) for source in self.sources(value))
            self.blocks.append(Step(self.recorded[-1], "block", value.shape, takes))
            code = frame["fn"].__code__
            passed = dict(zip(code.co_varnames[1:], frame["args"], strict=False)) | frame["kwargs"]
            own = self.arguments.setdefault(frame["m"].prefix.rstrip("."), {})
            for parameter, given in passed.items():
                if isinstance(given, np.ndarray):
                    self.shapes.setdefault(frame["m"].prefix.rstrip("."), {}).setdefault(parameter, given.shape)
                for source in self.sources(given):
                    own.setdefault(source, parameter)
        return y


class _Traced(Module):
    """A module whose operations give their marks."""

    def _tap(self, name, y):
        assert isinstance(self.taps, _Recorder)
        frame = sys._getframe(1)
        method, given = frame.f_code.co_name, frame.f_locals
        parameters = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if method == "apply":
            arguments = {f"x{i}": one for i, one in enumerate(given["arrays"])}
        else:
            arguments = {one: given[one] for one in parameters if one not in _CONSTANTS}
        takes = [(one, source) for one, value in arguments.items() for source in self.taps.sources(value)]
        self.taps.record(self.prefix + name, y)
        line = _line(frame)
        op = name if method == "apply" else method
        views = [(k, v.shape, self.taps.view(v)) for k, v in arguments.items() if isinstance(v, np.ndarray)]
        parts = tuple((k, part) for k, v in arguments.items() if isinstance(v, np.ndarray) and (part := _part(v)))
        return self.taps.mark(Step(self.taps.recorded[-1], op, y.shape, tuple(takes), line, tuple(views), parts))


def _part(view: np.ndarray) -> str:
    """Return which slice of a result, or which of the equal parts of its last axis, an argument is; "" for all."""
    whole, shape = view.base, view.shape
    if whole is None or not shape or not 0 < view.size < whole.size:
        return ""
    at, own = view.ctypes.data - whole.ctypes.data, [*zip(shape, view.strides, strict=True)]
    axes = [*zip(whole.shape, whole.strides, strict=True)]
    for axis, (n, stride) in enumerate(axes):
        if axes[:axis] + axes[axis + 1 :] == own:
            return f"slice {at // stride + 1} of {n} along axis {axis} of "
    (k, rest), count = divmod(at // view.itemsize, shape[-1]), whole.size // view.size
    equal = whole.shape[-1] == count * shape[-1] and view.strides[-1] == view.itemsize
    return f"part {k + 1} of {count} of " if equal and not rest and k < count else ""


def _line(frame) -> tuple[str, int]:
    """Return the file, below refsd/models, and the line of the model's code that called an operation."""
    while frame is not None and not frame.f_code.co_filename.startswith(_MODELS):
        frame = frame.f_back
    assert frame is not None
    return str(Path(frame.f_code.co_filename).relative_to(_MODELS)), frame.f_lineno


def trace(case: Case) -> Run:
    """Run a case's model on tiny weights."""
    assert case.model is not None
    name = case.op.removeprefix("model/")
    m, params = load(open_checkpoint(model_files(case.model, "ldm")), name, Arithmetic(FLOAT64))
    recorder = _Recorder()
    values = {argument: tensor.values() for argument, tensor in case.realize().items()}
    marked = {argument: recorder.take(argument, value) for argument, value in values.items()}
    component = COMPONENTS[name]
    y = component.run(
        _Traced(m.weights, m.arithmetic, taps=recorder),
        **marked,
        **{**component.params, **params, **case.params},
    )
    steps, blocks = tuple(recorder.steps), tuple(recorder.blocks)
    return Run(steps, tuple(recorder.sources(y)), recorder.arguments, recorder.shapes, blocks)
