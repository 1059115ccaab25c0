"""Find the formula of an answer that joins a few numbers at each place: sums, products, functions of them.

All short ones are computed at a few places; what agrees there is told, the shortest first.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from refsd.causes.generic.error_places import joined
from refsd.causes.operation.function_steps import FUNCTIONS, GATED, gate_and_value
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.tensor import stored

_OF_TOKENS = ("modulate", "gated_add")
_PLACES, _LEAST, _NEAR, _TOLD, _COST = 96, 32, 1e-5, 3, 2
# Of three numbers these functions alone are tried.
_OF_THREE = ("SiLU", "GELU (erf)", "GELU (tanh)", "ReLU", "sigmoid", "tanh", "exponential")
_SIGNS = {"(1 + {})": lambda x: 1 + x, "(1 - {})": lambda x: 1 - x}
_ROUNDED = {
    f"{name}({{}})": lambda x, name=name: x.astype(np.float32).astype(name).astype(np.float64)
    for name in ("float16", "bfloat16")
}
_JOINS = {
    "({} + {})": lambda a, b: a + b,
    "({} - {})": lambda a, b: a - b,
    "({1} - {0})": lambda a, b: b - a,
    "{} * {}": lambda a, b: a * b,
    "{} / {}": lambda a, b: a / b,
    "{1} / {0}": lambda a, b: b / a,
}
_Terms = Mapping[str, np.ndarray]


class _Part(NamedTuple):
    """A formula of some of the numbers. cost: how many functions it has; y: at some places; of: everywhere"""

    text: str
    cost: int
    y: np.ndarray
    of: Callable[[_Terms], np.ndarray]


def expressions(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) of the shortest formulas that give the answer. params: complete"""
    terms = _terms(op, inputs, params) if np.isfinite(actual).all() and actual.size >= _LEAST else {}
    if not 0 < len(terms) < 4:
        return
    terms = {name: np.broadcast_to(x, actual.shape) for name, x in terms.items()}
    at = np.unravel_index(np.random.default_rng(5).permutation(actual.size)[:_PLACES], actual.shape)
    y, right = actual[at], answer(op, inputs, params)[at]
    near = _NEAR * (np.abs(y) + np.abs(y).mean())
    leaves = [_Part(name, 0, x[at], lambda t, name=name: t[name]) for name, x in terms.items()]
    with np.errstate(all="ignore"):
        made = [part for part in _formulas(leaves) if (np.abs(part.y - y) <= near).all()]
        made = [part for part in made if (np.abs(part.y - right) > near).any()]
        for part in sorted(made, key=lambda part: (part.cost, len(part.text)))[:_TOLD]:
            yield f"computed as {_bare(part.text)}", part.of(terms).astype(np.float32)


def _terms(op: Operation, inputs: Inputs, params: Params) -> dict[str, np.ndarray]:
    """Return the numbers that the operation joins at each place; of products and norms, their bare result."""
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    if op.name in GATED:
        return dict(zip(("gate", "value"), gate_and_value(op.name, values["x"], params), strict=True))
    if op.name in ("add", "mul"):
        return values
    if op.name == "batch_norm":
        along = (-1, *(1,) * (values["x"].ndim - 2))
        root = np.sqrt(values["var"] + params["eps"])
        return {"x": values["x"], "mean": values["mean"].reshape(along), "root": root.reshape(along)}
    if op.name in _OF_TOKENS:
        return {name: x if x.ndim == 3 else x[:, None] for name, x in values.items()}
    plain = {"weight": np.ones_like, "bias": np.zeros_like} if op.family == "norms" else {"bias": np.zeros_like}
    of = {name: values[name] for name in plain if values.get(name, np.zeros(())).ndim == 1}
    along = (-1, *(1,) * (inputs["x"].values().ndim - 2)) if op.channel == 1 else (-1,)
    bare = answer(op, {**inputs, **{n: stored(plain[n](x).astype(np.float32)) for n, x in of.items()}}, params)
    name = f"(y without {joined([*of], 'and')})" if of else "y"
    return {name: bare, **{name: x.reshape(along) for name, x in of.items()}}


def _formulas(leaves: list[_Part]) -> Iterator[_Part]:
    """Yield the formulas in which each number stands once, and short ones in which one stands twice."""
    few = _OF_THREE if len(leaves) == 3 else [name for name in FUNCTIONS if name != "no function"]
    changes = {**_SIGNS, **{f"{name}({{}})": FUNCTIONS[name] for name in few}}
    yield from _trees(leaves, changes if len(leaves) == 1 else changes | _ROUNDED, _COST)
    for leaf in leaves if len(leaves) > 1 else ():
        yield from (part._replace(cost=part.cost + 1) for part in _trees([*leaves, leaf], _SIGNS, 1))


def _trees(leaves: list[_Part], changes: Mapping[str, Callable], most: int) -> Iterator[_Part]:
    """Yield the formulas of all leaves; functions of leaves and of plain formulas of two. most: functions in all"""
    if len(leaves) == 1:
        yield leaves[0]
        yield from _changed(leaves[0], changes)
    for size in range(1, len(leaves) // 2 + 1):
        for chosen in combinations(range(len(leaves)), size):
            if 2 * size == len(leaves) and 0 not in chosen:
                continue  # the other half was chosen before
            ones, others = (
                [leaf for i, leaf in enumerate(leaves) if (i in chosen) is own] for own in (True, False)
            )
            for a, b in product([*_trees(ones, changes, most)], [*_trees(others, changes, most)]):
                for text, of in _JOINS.items() if a.cost + b.cost <= most else ():
                    whole = lambda t, a=a, b=b, of=of: of(a.of(t), b.of(t))
                    part = _Part(text.format(a.text, b.text), a.cost + b.cost, of(a.y, b.y), whole)
                    yield part
                    yield from _changed(part, changes) if len(leaves) == 2 and not part.cost else ()


def _changed(part: _Part, changes: Mapping[str, Callable]) -> Iterator[_Part]:
    for name, of in changes.items():
        whole = lambda t, of=of: of(part.of(t))
        yield _Part(name.format(_bare(part.text)), part.cost + 1, of(part.y), whole)


def _bare(text: str) -> str:
    """Leave out parentheses around the whole."""
    depth = 0
    for c in text[:-1] or text:
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text
    return text[1:-1]
