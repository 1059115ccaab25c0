"""Judge one call: by its page in golden/operations, by a rule of this folder, or as a view."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from refsd.causes.generic.description import describe
from refsd.causes.generic.fitted_causes import fitted_causes
from refsd.golden.case import Case
from refsd.golden.explanation import Scene
from refsd.golden.given_case import GivenCase
from refsd.golden.judge import Standard
from refsd.golden.metrics import Metrics, measure
from refsd.golden.operations import OPERATIONS
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, largest
from refsd.golden.verdict import NO_WITNESS, judge_output
from refsd.judges.operation import OperationJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, Numerics
from refsd.watching.calls import Call, Expected, NotJudged, Question, parts, values
from refsd.watching.elementwise import ELEMENTWISE, elementwise
from refsd.watching.moves import MOVES
from refsd.watching.pages import PAGES
from refsd.watching.sums import SUMS
from refsd.watching.views import VIEWS, wrong_view

_RULES = {**SUMS, **MOVES, **dict.fromkeys(ELEMENTWISE, elementwise)}
_OUTPUT = "y"


class Verdict(NamedTuple):
    """The verdict on a call.

    margin:   error / limit of the criterion nearest to its limit; above 1 the call is wrong
    reason:   one line; "" if the call is right
    standard: what the first wrong output was judged against; None for a right call and for a view
    found:    that output
    finite:   whether the true answer is finite and within the range of the output's dtype
    """

    margin: float
    reason: str = ""
    standard: Standard | None = None
    found: np.ndarray | None = None
    finite: bool = True


def judge(call: Call) -> Verdict:
    """Judge a call. Raises NotJudged."""
    if not call.outputs:
        raise NotJudged("a call without a result")
    if call.op in VIEWS and hasattr(call.outputs[0], "dtype"):
        reason = wrong_view(call)
        return Verdict(float(bool(reason)) * 2, reason)
    if call.op in PAGES:
        try:
            asked = PAGES[call.op](call)
            assert isinstance(asked, Question)
            return _by_page(call, asked)
        except NotJudged:
            if call.op not in _RULES:
                raise
    if call.op not in _RULES:
        raise NotJudged("refsd has no rule for it")
    verdicts = [_by_rule(call, i, one) for i, one in enumerate(_RULES[call.op](call))]
    return next((v for v in verdicts if v.reason), max(verdicts, key=lambda v: v.margin))


def _by_page(call: Call, asked: Question) -> Verdict:
    """Judge against the page's bound; where that is missed, with the honest run's own statistics too."""
    op, numerics = OPERATIONS[asked.op], call.numerics
    truth = op.answer(Arithmetic(FLOAT64), asked.inputs, asked.params)
    bound = op.bound_of(numerics, asked.inputs, asked.params, truth)
    if numerics.compute == "float64":
        bound = bound._replace(limit=2 * bound.limit, spread=2 * bound.spread)
    found = asked.laid_out(values(call.outputs[0]))

    def measured(honest: np.ndarray) -> Metrics:
        return measure(_OUTPUT, found, truth, honest, bound, op.channel, floating=True)

    metrics = measured(_rounded(truth, numerics))
    if judge_output(metrics).passed:
        return Verdict(judge_output(metrics).margin, finite=_in_range(truth, numerics))
    honest = op.answer(Arithmetic(numerics), asked.inputs, asked.params)
    metrics = measured(honest)
    recipes = {name: Recipe(tensor.shape, tensor.type) for name, tensor in asked.inputs.items()}
    name, tensors = f"{call.place}/{call.function}", dict(asked.inputs)
    case = GivenCase(name, asked.op, recipes, dict(asked.params), None, tensors)
    standard = Standard(case, asked.inputs, {_OUTPUT: truth}, {_OUTPUT: honest}, numerics)
    return _verdict(metrics, standard, found)


def _by_rule(call: Call, position: int, one: Expected) -> Verdict:
    found, truth = values(call.outputs[position]), one.truth
    if np.iscomplexobj(found):
        found = parts(found)
    if one.bound is None and truth.dtype.kind not in "fc":
        right = found.shape == truth.shape and np.array_equal(found, truth)
        if right:
            return Verdict(0.0)
    numerics = FLOAT64 if one.bound is None else call.numerics
    bound = one.bound
    if bound is None:
        bound = Bound(np.zeros(truth.shape), np.zeros(truth.shape))
    exact = np.asarray(truth, np.float64)
    honest = _rounded(exact, numerics)
    metrics = measure(_OUTPUT, np.asarray(found, np.float64), exact, honest, bound, -1)
    standard = Standard(Case(call.function, call.op, {}), {}, {_OUTPUT: exact}, {_OUTPUT: honest}, numerics)
    verdict = _verdict(metrics, standard, np.asarray(found))
    return verdict if verdict.reason else verdict._replace(finite=_in_range(exact, numerics))


def _verdict(metrics: Metrics, standard: Standard, found: np.ndarray) -> Verdict:
    judged = judge_output(metrics)
    if judged.criterion == NO_WITNESS:
        raise NotJudged(judged.reason)
    if judged.passed:
        return Verdict(judged.margin)
    reason = judged.reason.removeprefix(f"{_OUTPUT}: ").replace(f"output {_OUTPUT!r}", "the result")
    return Verdict(judged.margin, reason, standard, found)


def _rounded(truth: np.ndarray, numerics: Numerics) -> np.ndarray:
    with np.errstate(over="ignore"):
        return truth.astype(numerics.storage_dtype).astype(np.float64)


def _in_range(truth: np.ndarray, numerics: Numerics) -> bool:
    return bool((np.abs(truth) <= largest(numerics.storage_dtype)).all())


def causes(call: Call, verdict: Verdict) -> list[str]:
    """Explain a wrong call: known bugs that give the same answer, the likeliest first; else what it looks like."""
    standard, found = verdict.standard, verdict.found
    if standard is None or found is None or found.shape != standard.truth[_OUTPUT].shape:
        return []
    with np.errstate(all="ignore"):
        if standard.case.op in OPERATIONS and standard.inputs:
            return OperationJudge().explain(standard, {_OUTPUT: found}).phrases
        truth, honest = standard.truth[_OUTPUT], standard.honest[_OUTPUT]
        found = np.asarray(found, np.float64)
        scene = Scene({_OUTPUT: found}, standard.truth, standard.honest, {_OUTPUT: _unit(truth)})
        suspects = {name: y for name, y in _suspects(call) if y.shape == truth.shape}
        moved = {name: {_OUTPUT: y + (honest - truth)} for name, y in suspects.items()}
        same = scene.nearest({name: y for name, y in moved.items() if scene.explained_by(y)})
        fitted = same or fitted_causes(found, truth, honest, -1, suspects)
        if fitted:
            return [f"the reference agrees if {' or '.join(fitted)}"]
        return list(describe(found, truth, honest, -1))


def _unit(truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.where(np.isfinite(truth), truth, 0) ** 2))) * 2.0**-24 or 1.0


def _suspects(call: Call) -> Iterator[tuple[str, np.ndarray]]:
    """Yield answers of plausible bugs: another operation of the same arguments, arguments exchanged or left out."""
    for name, args in _other_arguments(call):
        yield from _truth_of(call._replace(args=args), name)
    if call.op in ELEMENTWISE:
        names = ELEMENTWISE[call.op].names
        for other, rule in ELEMENTWISE.items():
            if other != call.op and rule.names[:2] == names[:2] and rule.error is not None:
                yield from _truth_of(call._replace(op=other), f"{other} in its place")


def _other_arguments(call: Call) -> Iterator[tuple[str, dict[str, Any]]]:
    args = dict(call.args)
    if {"self", "other"} <= args.keys():
        yield "its operands are exchanged", {**args, "self": args["other"], "other": args["self"]}
    if isinstance(args.get("tensors"), (list, tuple)):
        yield "its tensors are in the other order", {**args, "tensors": list(reversed(args["tensors"]))}
    if "alpha" in args and args["alpha"] != 1:
        yield "alpha is ignored", {**args, "alpha": 1}
    if args.get("beta"):
        yield "the matrix that is added is ignored", {**args, "beta": 0}
    if isinstance(args.get("pad"), (list, tuple)):
        swapped = [args["pad"][i ^ 1] for i in range(len(args["pad"]))]
        yield "padding on the other side", {**args, "pad": swapped}
    for name in ("self", "other", "mask", "condition"):
        x: Any = args.get(name)
        if hasattr(x, "dtype") and x.ndim and x.shape[0] > 1:
            first = x[:1].expand(x.shape)
            yield f"every item of the first axis reads the first of {name}", {**args, name: first}


def _truth_of(call: Call, name: str) -> Iterator[tuple[str, np.ndarray]]:
    try:
        answers = _RULES[call.op](call) if call.op in _RULES else []
    except (NotJudged, ValueError, TypeError, IndexError):
        return
    for one in answers[:1]:
        yield name, np.asarray(one.truth, np.float64)
