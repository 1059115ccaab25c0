"""Judge one call: by its page in golden/operations, by a rule of this folder, or as a view."""

from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.given_case import GivenCase
from refsd.golden.judge import Standard
from refsd.golden.metrics import Metrics, measure
from refsd.golden.operations import OPERATIONS
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound
from refsd.golden.verdict import NO_WITNESS, judge_output
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, Numerics
from refsd.watching.calls import Call, Expected, NotJudged, Question, parts, values
from refsd.watching.elementwise import ELEMENTWISE, elementwise
from refsd.watching.moves import MOVES
from refsd.watching.pages import PAGES
from refsd.watching.sums import SUMS
from refsd.watching.views import VIEWS, wrong_view

RULES = {**SUMS, **MOVES, **dict.fromkeys(ELEMENTWISE, elementwise)}
OUTPUT = "y"


class Verdict(NamedTuple):
    """The verdict on a call.

    margin:   error / limit of the criterion nearest to its limit; above 1 the call is wrong
    reason:   one line; "" if the call is right
    standard: what the first wrong output was judged against; None for a right call and for a view
    found:    that output
    """

    margin: float
    reason: str = ""
    standard: Standard | None = None
    actual: np.ndarray | None = None


def judge(call: Call) -> Verdict:
    """Judge a call. Raises NotJudged."""
    if not call.outputs:
        raise NotJudged("a call without a result")
    if call.op in VIEWS and hasattr(call.outputs[0], "dtype"):
        reason = wrong_view(call)
        return Verdict(float(bool(reason)) * 2, reason)
    if call.op in PAGES:
        if _empty(call.outputs[:1]):
            wrong = not _empty(call.args.values())
            return Verdict(2.0 * wrong, "the result is empty" * wrong)
        try:
            question = PAGES[call.op](call)
            assert isinstance(question, Question)
            return _by_page(call, question)
        except NotJudged:
            if call.op not in RULES:
                raise
    if call.op not in RULES:
        raise NotJudged("refsd has no rule for it")
    verdicts = [_by_rule(call, i, one) for i, one in enumerate(RULES[call.op](call))]
    return next((v for v in verdicts if v.reason), max(verdicts, key=lambda v: v.margin))


def _empty(several) -> bool:
    """Return True if one of the tensors has no elements."""
    return any(hasattr(x, "numel") and not x.numel() for x in several)


def _by_page(call: Call, question: Question) -> Verdict:
    """Judge against the page's bound; where that is missed, with the honest run's own statistics too."""
    op, numerics = OPERATIONS[question.op], call.numerics
    truth = op.answer(Arithmetic(FLOAT64), question.inputs, question.params)
    bound = op.bound_of(numerics, question.inputs, question.params, truth)
    if numerics.compute == "float64":
        bound = bound._replace(limit=2 * bound.limit, spread=2 * bound.spread)
    if question.stored is not None:
        more = call.run.between(question.stored(truth))
        bound = bound._replace(limit=bound.limit + more, spread=bound.spread + more)
    found = question.laid_out(values(call.outputs[0]))

    def measured(honest: np.ndarray) -> Metrics:
        return measure(OUTPUT, found, truth, honest, bound, op.channel, floating=True)

    metrics = measured(rounded(truth, numerics))
    if judge_output(metrics).passed:
        return Verdict(judge_output(metrics).margin)
    honest = op.answer(Arithmetic(numerics), question.inputs, question.params)
    metrics = measured(honest)
    recipes = {name: Recipe(tensor.shape, tensor.type) for name, tensor in question.inputs.items()}
    name, tensors = f"{call.place}/{call.function}", dict(question.inputs)
    case = GivenCase(name, question.op, recipes, dict(question.params), None, tensors)
    standard = Standard(case, question.inputs, {OUTPUT: truth}, {OUTPUT: honest}, numerics)
    return _verdict(metrics, standard, found)


def _by_rule(call: Call, position: int, one: Expected) -> Verdict:
    actual, truth = values(call.outputs[position]), one.truth
    if np.iscomplexobj(actual):
        actual = parts(actual)
    if one.bound is None and truth.dtype.kind not in "fc":
        right = actual.shape == truth.shape and np.array_equal(actual, truth)
        if right:
            return Verdict(0.0)
    if not actual.size and not truth.size and actual.shape == truth.shape:
        return Verdict(0.0)
    numerics = FLOAT64 if one.bound is None else call.numerics
    bound = one.bound
    if bound is None:
        bound = Bound(np.zeros(truth.shape), np.zeros(truth.shape))
    exact = np.asarray(truth, np.float64)
    honest = rounded(exact, numerics)
    metrics = measure(OUTPUT, np.asarray(actual, np.float64), exact, honest, bound, -1)
    standard = Standard(Case(call.function, call.op, {}), {}, {OUTPUT: exact}, {OUTPUT: honest}, numerics)
    return _verdict(metrics, standard, np.asarray(actual))


def _verdict(metrics: Metrics, standard: Standard, actual: np.ndarray) -> Verdict:
    judged = judge_output(metrics)
    if judged.criterion == NO_WITNESS:
        raise NotJudged(judged.reason)
    if judged.passed:
        return Verdict(judged.margin)
    reason = judged.reason.removeprefix(f"{OUTPUT}: ").replace(f"output {OUTPUT!r}", "the result")
    return Verdict(judged.margin, reason, standard, actual)


def rounded(truth: np.ndarray, numerics: Numerics) -> np.ndarray:
    """Return float64 values rounded to the storage dtype."""
    with np.errstate(over="ignore"):
        return truth.astype(numerics.storage_dtype).astype(np.float64)
