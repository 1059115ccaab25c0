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
from collections.abc import Iterator
from types import FunctionType

from refsd.golden.operations import OPERATIONS
from refsd.stages import STAGES

# Modules whose whole code decides how large an error may be.
_MODULES = (
    *("refsd.golden.verdict", "refsd.golden.metrics", "refsd.golden.bounds", "refsd.golden.rounding"),
    *("refsd.golden.projections", "refsd.trajectory.measure"),
)


@functools.cache
def digest() -> str:
    """Return a SHA-256 in hexadecimal digits."""
    key = hashlib.sha256()
    for source in _sources():
        key.update(_bare(source).encode())
    return key.hexdigest()


def _sources() -> Iterator[str]:
    for module in _MODULES:
        yield inspect.getsource(importlib.import_module(module))
    bounds = {name: op.bound for name, op in OPERATIONS.items()}
    bounds |= {f"{name}/{key}": output.bound for name, of in STAGES.items() for key, output in of.outputs.items()}
    for name in sorted(bounds):
        yield f"{name!r}"
        if isinstance(bounds[name], FunctionType):
            yield textwrap.dedent(inspect.getsource(bounds[name]))


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
