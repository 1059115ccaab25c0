"""The text of an issue for an engine's tracker: symptom, smallest case, figures, place, cause, how to reproduce."""

import json
from collections.abc import Mapping

import numpy as np

from refsd import __version__
from refsd.golden import verdict
from refsd.golden.case import ModelRecipe
from refsd.golden.engine import Engine
from refsd.golden.operations import OPERATIONS
from refsd.golden.repeated_requests import CHANGING, LEFT_OVER, OF_REQUESTS
from refsd.golden.report import Result
from refsd.golden.wording import counted
from refsd.shrinking.failure import Cut
from refsd.shrinking.shrink import Shrunk
from refsd.weights.recipes import suffix

# Of longer tensors only the beginning is shown.
_SHOWN = 16


def text(
    shrunk: Shrunk,
    engine: Engine,
    command: str,
    expected: Mapping[str, np.ndarray],
    program: bool,
    layout: str = "contiguous",
) -> str:
    """Markdown.

    command:  the script and the engine, as a shell takes them
    expected: truth, limit and found
    program:  whether there is a program for ggml
    layout:   how the inputs lie in memory
    """
    result, case = shrunk.result, shrunk.case
    parts = [f"# {title(engine, shrunk.titled)}", "", _symptom(engine, result), "", "## Smallest case", ""]
    parts += _case(shrunk)
    if layout != "contiguous":
        parts += ["", f"The inputs lie in memory as `{layout}`; contiguous, the answer is right."]
    if case.op in OPERATIONS and "found" in expected and CHANGING not in result.causes:
        parts += ["", *_answers(expected, {name: tensor.values() for name, tensor in case.tensors.items()})]
    parts += ["", "## Place and cause", "", *_place(shrunk)]
    if shrunk.cut is not None:
        parts += ["", "## At the first wrong place", "", *_at_the_tap(shrunk.cut)]
    parts += ["", "## Figures", "", *_figures(result)]
    parts += ["", "## To reproduce", "", *_reproduce(shrunk, command, program)]
    return "\n".join(parts) + "\n"


def title(engine: Engine, result: Result) -> str:
    """In a line: what is wrong where."""
    if result.status == verdict.ERROR:
        return f"{result.op}: no answer: {result.reason}"
    why = result.deviations or result.causes or result.looks
    where = f"{result.op}, {result.place}" if result.op not in OPERATIONS and result.place else result.op
    return f"{where}: {why[0] if why else 'wrong answer'}"


def _symptom(engine: Engine, result: Result) -> str:
    what = f" ({OPERATIONS[result.op].what.rstrip('.')})" if result.op in OPERATIONS else ""
    if result.status == verdict.ERROR:
        return f"{engine.name} {engine.version} gives no answer to `{result.op}`{what}: {result.reason}"
    if CHANGING in result.causes:
        who = f"{engine.name} {engine.version}"
        return f"{who} answers `{result.op}`{what} otherwise when asked again: {_first(result)}"
    return (
        f"{engine.name} {engine.version} computes `{result.op}`{what} and is further from the answer in float64 "
        f"than an engine can be that computes as it says ({result.numerics}): {_first(result)}"
    )


def _first(result: Result) -> str:
    """The reason without what explains it."""
    return result.reason.split("; ")[0] + "."


def _case(shrunk: Shrunk) -> list[str]:
    case = shrunk.case
    rows = ["| input | type | shape | numbers |", "|---|---|---|---|"]
    for name, tensor in case.tensors.items():
        shape = " x ".join(map(str, tensor.shape))
        rows.append(f"| {name} | {tensor.type} | {shape} | {_numbers(tensor.values())} |")
    rows = rows if case.tensors else ["No inputs."]
    params = ", ".join(f"`{name}` = {value}" for name, value in case.params.items())
    weights = [] if case.model is None else ["", _weights(case.model)]
    return [*rows, "", f"Parameters: {params}." if params else "No parameters but the defaults.", *weights]


def _weights(model: ModelRecipe) -> str:
    tiny = " --tiny" if model.tiny else ""
    sizes = "".join(f" --size {name}={json.dumps(value)}".replace(", ", ",") for name, value in model.sizes or ())
    made = f"refsd weights make {model.family} --type {model.type}{tiny}{sizes} -o weights{suffix(model.type)}"
    quiet = f", with weights divided by 2^{model.quiet} but for norms and modulations" if model.quiet else ""
    return f"Weights: `{made}`{quiet}."


def _numbers(values: np.ndarray) -> str:
    flat = np.asarray(values).reshape(-1)
    shown = ", ".join(f"{x:.7g}" for x in flat[:_SHOWN].tolist())
    return shown + (", ..." if flat.size > _SHOWN else "")


def _answers(expected: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]) -> list[str]:
    """The elements that are beyond their bound, the worst first, with the inputs that have their shape."""
    truth, limit, actual = (np.asarray(expected[name]) for name in ("truth", "limit", "found"))
    if actual.shape != truth.shape:
        return [f"The answer has the shape {list(actual.shape)}, expected {list(truth.shape)}."]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        z = np.where(actual == truth, 0.0, np.abs(actual - truth) / limit)
    z = np.nan_to_num(z, nan=np.inf)
    beside = {name: x for name, x in inputs.items() if x.shape == truth.shape}
    heads = ("element", *beside, "found", "expected", "may differ by")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    wrong = max(1, int((z > 1).sum()))
    for i in np.argsort(-z, axis=None, kind="stable")[: min(wrong, _SHOWN)]:
        at = [int(k) for k in np.unravel_index(i, truth.shape)]
        of = "".join(f"{x.flat[i]:.9g} | " for x in beside.values())
        rows.append(f"| {at} | {of}{actual.flat[i]:.9g} | {truth.flat[i]:.12g} | {limit.flat[i]:.3g} |")
    return rows


def _at_the_tap(cut: Cut) -> list[str]:
    """What the first wrong tap of a model was made of."""
    lines = [f"`{cut.tap}` is made of the engine's tap before it by:", ""]
    for case in reversed(cut.operations):
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in case.tensors.items())
        params = "".join(f", {name} = {value}" for name, value in case.params.items())
        lines.append(f"- `{case.op}`: {shapes}{params}")
    if len(cut.operations) == 1:
        lines += [
            "",
            "Its inputs, the answer in float64 (`truth`) and the engine's (`found`) are in `place.safetensors`.",
        ]
    return lines


def _place(shrunk: Shrunk) -> list[str]:
    result = shrunk.result
    lines = [f"- Place: {result.place if result.place not in ('', 'y') else result.op}."]
    if shrunk.tap:
        lines.append(
            f"- In `{shrunk.original.name}` it is `{shrunk.tap}`, the first place that is wrong. The operation "
            "alone, on the engine's own inputs to it, is wrong, too."
        )
    if shrunk.titled is not result:
        lines.append(f"- In `{shrunk.original.name}`: {(*shrunk.titled.causes, _first(shrunk.titled))[0]}")
    for cause in result.causes:
        same = "" if cause in OF_REQUESTS else " With this bug the reference gives the same answer."
        lines.append(f"- Cause: {cause}.{same}")
    for deviation in result.deviations:
        lines.append(f"- Deviation: {deviation}.")
    if not result.causes and not result.deviations:
        lines += [f"- What it looks like: {look}." for look in result.looks]
        lines += [f"- {result.nearest.phrase}."] if result.nearest else []
        lines += ["- No known bug explains it."] if len(lines) == 1 else []
    return lines


def _figures(result: Result) -> list[str]:
    lines = []
    wrong = [m for m in (*result.taps[:1], *result.outputs) if not verdict.judge_output(m).passed]
    for m in wrong or result.outputs:
        if m.engine is None or m.honest is None:
            continue
        lines.append(
            f"- `{m.output}`: relative L2 error {m.relative_l2:.3g}; an honest run has {m.honest_relative_l2:.3g}."
        )
        if m.not_finite:
            lines.append(f"- {counted(m.not_finite, 'element')} not finite where the answer in float64 is.")
        worst = "beyond any bound" if m.engine.worst >= 1e30 else f"{m.engine.worst:.3g}"
        lines.append(
            f"- The largest error in units of the bound: {worst} (honest: {m.honest.worst:.3g}, allowed: 1)."
        )
    return lines or [f"- {result.reason}"]


def _reproduce(shrunk: Shrunk, command: str, program: bool) -> list[str]:
    sizes = {name: list(recipe.shape) for name, recipe in shrunk.original.inputs.items()}
    shapes = ", ".join(f"{name} {shape}" for name, shape in sizes.items())
    whole = "" if shrunk.whole else "; the time ended before every step was tried"
    again = f"    python {command}"
    of_ggml = "    # or reproduce_ggml.cpp, a program for ggml alone: its first lines say how to build it"
    reduced = "Not reduced: " if {*OF_REQUESTS} & {*shrunk.result.causes} else "Reduced from "
    return [
        "In the folder where refsd was run, so that the engine's path holds:",
        "",
        f"{again}      # with refsd {__version__}: asks the engine, judges its answer",
        *([of_ggml] if program else []),
        "",
        "`python` is the one that has refsd: with uv `uv run python`, or `uv run --project PATH/TO/refsd python`.",
        "",
        *(["Ask several times: some answers may be right.", ""] if CHANGING in shrunk.result.causes else []),
        *([f"Asked alone it conforms: {LEFT_OVER}.", ""] if LEFT_OVER in shrunk.result.causes else []),
        f"{reduced}`{shrunk.original.name}` ({shapes}) in {counted(shrunk.questions, 'question')}{whole}. "
        "`inputs.safetensors` has the numbers to the last bit.",
    ]
