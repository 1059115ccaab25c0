"""Reduce the first wrong call, and write the program that shows it and the text of an issue."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from refsd import __version__
from refsd.engines.torch.engine import arrays, quietly
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, NoDeviations
from refsd.golden.operations import OPERATIONS
from refsd.golden.recipe import Recipe
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, Numerics
from refsd.numerics.tensor import StoredTensor, stored
from refsd.shrinking.failure import ask, runner_of
from refsd.shrinking.shrink import shrink
from refsd.watching.calls import NotJudged
from refsd.watching.judging import OUTPUT, Verdict, judge
from refsd.watching.programs import CALLS, Program, Tensor, of_call, of_page, seeded
from refsd.watching.report import WrongCall

_SECONDS = 60.0
_TYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class SeededCase(Case, frozen=True):
    """A case of an operation whose inputs torch draws from seeds, so that a program has them in a line each.

    draws: input -> seed and standard deviation; layout: put after each tensor of four axes
    """

    draws: dict[str, tuple[int, float]] = msgspec.field(default_factory=dict)
    layout: str = ""

    def tensors(self) -> list[Tensor]:
        tensors = []
        for name, recipe in self.inputs.items():
            seed, scale = self.draws[name]
            layout = self.layout if len(recipe.shape) == 4 else ""
            tensors.append(seeded(name, seed, recipe.shape, scale, _TYPES[recipe.type], layout))
        return tensors

    def realize(self) -> dict[str, StoredTensor]:
        names, _ = Program(tuple(self.tensors()), "None").run()
        return {name: stored(np.asarray(arrays(names[name]), order="C")) for name in self.inputs}


class _Torch(NoDeviations):
    """torch, asked by programs, under the numerics of the wrong call."""

    version = torch.__version__

    def __init__(self, numerics: Numerics):
        self.name, self._numerics = "torch", numerics

    def refuses(self, case: Case) -> str | None:
        return None if isinstance(case, SeededCase) else "only seeded cases"

    def numerics(self, case: Case) -> Numerics:
        return self._numerics

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        assert isinstance(case, SeededCase)
        try:
            with quietly():
                return {"y": arrays(_program(case).run()[1])}
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise EngineFailure(f"torch: {str(error).splitlines()[0]}") from error


def _program(case: SeededCase) -> Program:
    return of_page(case.op, case.tensors(), OPERATIONS[case.op].complete(case.realize(), case.params))


def reproduce(first: WrongCall, folder: Path) -> str:
    """Write reproduce.py and issue.md, and inputs.pt where the numbers matter. Return a line on them."""
    folder.mkdir(parents=True, exist_ok=True)
    reduced = _reduced(first)
    if reduced is not None:
        program, check, how = reduced
        files: dict[str, Any] = {}
    else:
        program, check, how, files = _as_called(first)
    text = program.text(check)
    if files:
        torch.save(files, folder / "inputs.pt")
    (folder / "reproduce.py").write_text(text, encoding="utf-8")
    (folder / "issue.md").write_text(_issue(first, text), encoding="utf-8")
    return f"{folder / 'reproduce.py'} shows it ({how}); {folder / 'issue.md'} is the text of an issue"


def _reduced(first: WrongCall) -> tuple[Program, list[str], str] | None:
    """Return the smallest program of the page that fails likewise; None if seeded numbers do not show it."""
    standard = first.verdict.standard
    if standard is None or standard.case.op not in CALLS or first.call.outputs[0].device.type != "cpu":
        return None
    inputs = {name: t for name, t in standard.inputs.items() if t.type in _TYPES}
    if len(inputs) < len(standard.inputs):
        return None
    draws = {
        name: (seed, float(f"{np.std(np.asarray(t.values(), np.float64)) or 1:.1g}"))
        for seed, (name, t) in enumerate(inputs.items())
    }
    draws = {name: (seed, 1.0 if 0.5 <= scale <= 2 else scale) for name, (seed, scale) in draws.items()}
    recipes = {name: Recipe(t.shape, t.type) for name, t in inputs.items()}
    engine = _Torch(standard.numerics)
    quick = runner_of()._replace(explains=False)
    for layout in ("", ".contiguous(memory_format=torch.channels_last)"):
        case = SeededCase("watched", standard.case.op, recipes, dict(standard.case.params), None, draws, layout)
        result = ask(quick, engine, case)
        if result is None or result.status != "fail":
            continue
        smallest = [case]
        shrunk = shrink(lambda one: ask(quick, engine, one), case, result, _SECONDS, smallest.append, values=False)
        left = smallest[-1]
        assert isinstance(left, SeededCase)
        program = _program(left)
        standard_of_it = _expected(left, engine)
        how = f"reduced in {shrunk.questions} questions"
        return program, _check(program, *standard_of_it), how
    return None


def _expected(case: SeededCase, engine: _Torch) -> tuple[np.ndarray, np.ndarray]:
    """Return the truth of a case and its bound."""
    op, inputs = OPERATIONS[case.op], case.realize()
    truth = op.answer(Arithmetic(FLOAT64), inputs, case.params)
    return truth, op.bound_of(engine.numerics(case), inputs, case.params, truth).limit


def _as_called(first: WrongCall) -> tuple[Program, list[str], str, dict[str, torch.Tensor]]:
    """Return the program of the call itself: with drawn numbers if they show it, else with its own."""
    for drawn in (True, False):
        program, files = of_call(first.call, drawn)
        verdict = None if files else _verdict_of(program, first)
        if verdict is not None and verdict.reason:
            return program, _check_of(program, verdict), "drawn numbers" if drawn else "its own numbers", files
    program, names = of_call(first.call, False)
    return program, _check_of(program, first.verdict), "its own numbers", names


def _verdict_of(program: Program, first: WrongCall) -> Verdict | None:
    """Judge the call with the program's tensors; None if it cannot be judged."""
    try:
        with quietly():
            names, y = program.run()
            given = iter([names[t.name] for t in program.tensors])
            args = _replaced(dict(first.call.args), given)
            outputs = tuple(tree_leaves(y))
            return judge(first.call._replace(args=args, outputs=outputs))
    except (NotJudged, RuntimeError, ValueError, TypeError, IndexError):
        return None


def _replaced(value: Any, tensors) -> Any:
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {k: _replaced(v, tensors) for k, v in value.items()}
    return [_replaced(v, tensors) for v in value] if isinstance(value, (list, tuple)) else value


def _check_of(program: Program, verdict: Verdict) -> list[str]:
    """Print the worst element beside its truth; of a view, its shape and strides."""
    if verdict.standard is None:
        return ["print(y.shape, y.stride())", f"# {verdict.reason}"]
    truth = verdict.standard.truth[OUTPUT]
    return _literal_check(np.asarray(verdict.actual, np.float64), truth, None)


def _check(program: Program, truth: np.ndarray, limit: np.ndarray) -> list[str]:
    """Compare with the same in float64 if that is right; else print the worst element beside its truth."""
    names, y = program.run()
    found = np.asarray(arrays(y), np.float64)
    with torch.inference_mode(False), torch.no_grad(), np.errstate(all="ignore"):
        doubled = arrays(eval(program.doubled, names))
    if doubled.shape == truth.shape and (np.abs(doubled - truth) <= 1e-6 * np.abs(truth).max() + limit).all():
        finite = np.isfinite(limit)
        allowed = float(limit[finite].max(initial=0.0))
        return [
            f"truth = {program.doubled}",
            f'print("error:", (y.double() - truth).abs().max().item(), "allowed:", {allowed:.3g})',
        ]
    return _literal_check(found, truth, limit)


def _literal_check(actual: np.ndarray, truth: np.ndarray, limit: np.ndarray | None) -> list[str]:
    if actual.shape != truth.shape:
        return [f'print(list(y.shape), "expected:", {list(truth.shape)})']
    error = np.nan_to_num(np.abs(actual - truth), nan=np.inf)
    at = np.unravel_index(int(np.argmax(error)), truth.shape) if truth.shape else ()
    index = ", ".join(str(int(i)) for i in at)
    room = "" if limit is None else f', "allowed error:", {float(limit[at]):.3g}'
    element = f"y[{index}].item()" if index else "y.item()"
    return [f'print("found:", {element}, "expected:", {float(truth[at]):.9g}{room})']


def _issue(first: WrongCall, program: str) -> str:
    function = first.call.function
    cpu = platform.processor() or platform.machine()
    device = first.call.outputs[0].device
    title = (
        f"# {function} gives wrong numbers ({str(first.call.outputs[0].dtype).removeprefix('torch.')}, {device})"
    )
    causes = [f"- {cause}" for cause in first.causes] or ["- no known bug explains it"]
    lines = [
        *(title, "", "```python", program.rstrip(), "```", ""),
        f"torch {torch.__version__}, {platform.system()}, {cpu}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} threads, {os.cpu_count()} processors.",
        "",
        *(f"First seen as {first.what}:", "", f"- {first.verdict.reason}", *causes, ""),
        f"Found with refsd {__version__}: the expected numbers are computed in float64 from the call's own inputs.",
    ]
    return "\n".join([*lines, ""])
