"""Explain a wrong call: by the known bugs of its page, else by plausible bugs of any operation."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from refsd.causes.generic.description import describe
from refsd.causes.generic.fitted_causes import fitted_causes
from refsd.golden.explanation import Scene
from refsd.golden.operations import OPERATIONS
from refsd.judges.operation import OperationJudge
from refsd.watching.calls import Call, NotJudged, values, wide
from refsd.watching.elementwise import ELEMENTWISE
from refsd.watching.judging import OUTPUT, RULES, Verdict, rounded

# A bug explains an answer that is nearer to its own answer than this share of the error.
_NEAR = 0.05
_FAILURES = (NotJudged, ValueError, TypeError, IndexError, ZeroDivisionError)


def causes(call: Call, verdict: Verdict) -> list[str]:
    """Return phrases on a wrong call: known bugs that give the same answer, the likeliest first; else its looks."""
    standard, actual = verdict.standard, verdict.actual
    if standard is None or actual is None or actual.shape != standard.truth[OUTPUT].shape:
        return []
    with np.errstate(all="ignore"):
        if standard.case.op in OPERATIONS and standard.inputs:
            return OperationJudge().explain(standard, {OUTPUT: actual}).phrases
        truth, honest = standard.truth[OUTPUT], standard.honest[OUTPUT]
        actual = np.asarray(actual, np.float64)
        scene = Scene({OUTPUT: actual}, standard.truth, standard.honest, {OUTPUT: _unit(truth)})
        suspects = {name: y for name, y in _suspects(call) if y.shape == truth.shape}
        answers = {name: {OUTPUT: rounded(y, standard.numerics)} for name, y in suspects.items()}
        error = scene.distance(standard.truth)
        same = scene.nearest({name: y for name, y in answers.items() if scene.distance(y) <= _NEAR * error})
        fitted = same or fitted_causes(actual, truth, honest, -1, suspects)
        if fitted:
            return [f"the reference agrees if {' or '.join(fitted)}"]
        return list(describe(actual, truth, honest, -1))


def _unit(truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.where(np.isfinite(truth), truth, 0) ** 2))) * 2.0**-24 or 1.0


def _suspects(call: Call) -> Iterator[tuple[str, np.ndarray]]:
    """Yield answers of plausible bugs: another operation of the same arguments, arguments exchanged or left out."""
    x = call.args.get("self")
    if hasattr(x, "dtype"):
        yield "its input is returned as it is", np.asarray(wide(x))
        if call.op in ("_to_copy", "copy") and (cut := _cut_off(call)) is not None:
            yield "numbers are cut off, not rounded", cut
    for name, args in (*_other_arguments(call.args), *_other_items(call.args)):
        yield from _truth_of(call._replace(args=args), name)
    if call.op in ELEMENTWISE:
        names = ELEMENTWISE[call.op].names
        for other, rule in ELEMENTWISE.items():
            if other != call.op and rule.names[:2] == names[:2] and rule.error is not None:
                yield from _truth_of(call._replace(op=other), f"{other} in its place")


def _cut_off(call: Call) -> np.ndarray | None:
    """Return the input with the bits removed that the output's dtype does not hold."""
    kept = {"torch.bfloat16": 16, "torch.float16": 13}.get(str(call.outputs[0].dtype))
    x = values(call.args.get("src", call.args["self"]))
    if kept is None or x.dtype != np.float32:
        return None
    bits = np.array(x).view(np.uint32) & np.uint32(0xFFFFFFFF << kept & 0xFFFFFFFF)
    return bits.view(np.float32).astype(np.float64)


def _other_arguments(args) -> Iterator[tuple[str, dict[str, Any]]]:
    if {"self", "other"} <= args.keys():
        yield "its operands are exchanged", {**args, "self": args["other"], "other": args["self"]}
    if isinstance(args.get("tensors"), (list, tuple)):
        yield "its tensors are in the other order", {**args, "tensors": list(reversed(args["tensors"]))}
    if args.get("alpha", 1) != 1:
        yield "alpha is ignored", {**args, "alpha": 1}
    if args.get("beta"):
        yield "the matrix that is added is ignored", {**args, "beta": 0}
    if isinstance(args.get("pad"), (list, tuple)):
        yield "padding on the other side", {**args, "pad": [args["pad"][i ^ 1] for i in range(len(args["pad"]))]}
    if isinstance(args.get("shifts"), (list, tuple)):
        yield "it shifts the other way", {**args, "shifts": [-n for n in args["shifts"]]}
    for name in ("min", "max"):
        if args.get(name) is not None:
            yield f"{name} is ignored", {**args, name: None}
    for change in (-1, 1):
        if "diagonal" in args:
            yield f"the diagonal is {args['diagonal'] + change}", {**args, "diagonal": args["diagonal"] + change}
        if "correction" in args:
            other = (1 if args["correction"] is None else args["correction"]) + change
            yield f"it divides by n - {other}", {**args, "correction": other}


def _other_items(args) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield tensors whose other items are read: the first of all, the next, those that a mask hides."""
    for name, x in args.items():
        if not hasattr(x, "dtype"):
            continue
        if str(x.dtype) == "torch.bool":
            yield f"{name} is inverted", {**args, name: ~x}
        if x.ndim and x.shape[0] > 1:
            yield f"every item of the first axis reads the first of {name}", {**args, name: x[:1].expand(x.shape)}
        if name in ("index", "indices") and not x.dtype.is_floating_point:
            size = args.get("weight", args.get("self")).shape[args.get("dim", 0)]
            yield "each index is one more", {**args, name: (x + 1) % size}
            yield "each index is one less", {**args, name: (x - 1) % size}


def _truth_of(call: Call, name: str) -> Iterator[tuple[str, np.ndarray]]:
    try:
        answers = RULES[call.op](call) if call.op in RULES else []
    except _FAILURES:
        return
    for one in answers[:1]:
        yield name, np.asarray(one.truth, np.float64)  # pyright: ignore
