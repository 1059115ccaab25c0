"""A digest of the rules that verdicts follow: criteria, metrics, and each operation's bound.

It is taken of the code without comments, docstrings and layout. Two refsd with equal rules and cases give the same
verdict on the same numbers.
"""

import ast
import functools
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Iterable
from types import FunctionType

from refsd.golden.operations import OPERATIONS
from refsd.stages import STAGES

_VERDICTS = "verdicts"
# Modules whose whole code decides how large an error may be.
_MODULES = (
    *("refsd.golden.verdict", "refsd.golden.metrics", "refsd.golden.bounds", "refsd.golden.rounding"),
    *("refsd.golden.projections", "refsd.trajectory.measure"),
)


def digest() -> str:
    """Return one digest of all rules, in hexadecimal digits."""
    text = "".join(f"{name} {of}\n" for name, of in digests([*OPERATIONS, *STAGES]).items())
    return hashlib.sha256(text.encode()).hexdigest()


def digests(ops: Iterable[str]) -> dict[str, str]:
    """Return the digests of the rules that judge these operations: of every verdict, and each one's bounds."""
    bounds = {op: of for op in sorted({*ops}) if (of := _bounds(op))}
    return {_VERDICTS: _verdicts(), **bounds}


@functools.cache
def _verdicts() -> str:
    sources = (inspect.getsource(importlib.import_module(module)) for module in _MODULES)
    return _short("".join(_bare(source) for source in sources))


@functools.cache
def _bounds(op: str) -> str:
    """Return a digest of the functions that bound an operation's outputs; "" without one, as a model."""
    if op in OPERATIONS:
        functions = [OPERATIONS[op].bound]
    elif op in STAGES:
        functions = [output.bound for output in STAGES[op].outputs.values()]
    else:
        return ""
    sources = [inspect.getsource(one) for one in functions if isinstance(one, FunctionType)]
    return _short("".join(_bare(textwrap.dedent(source)) for source in sources))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _bare(source: str) -> str:
    """Return code without its docstrings, comments and layout; as it is where it is no whole statement."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda inside a table
        return "".join(source.split())
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node, False) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)
