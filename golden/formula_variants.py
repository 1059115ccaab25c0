"""Change one expression of a reference function at a time, as an engine may get it wrong.

A bug is a kind of mistake at a place. The place is an expression of a function that the reference runs; the kinds
are few: another variable, a term dropped or with the other sign, another function, an index off by one, a statement
left out. All are made from the function's source; none is listed by hand.
"""

import ast
import functools
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

# Function -> functions that may be called in its place.
_ALIKE = {
    "log": ("log10", "log2", "log1p"),
    "exp": ("expm1", "exp2"),
    "expm1": ("exp",),
    "sin": ("cos",),
    "cos": ("sin",),
    "max": ("min",),
    "min": ("max",),
    "maximum": ("minimum",),
    "minimum": ("maximum",),
    "floor": ("ceil", "rint"),
    "ceil": ("floor",),
    "round": ("int",),
    "int": ("round",),
    "mean": ("sum", "max"),
    "sum": ("mean", "max"),
    "std": ("var",),
    "sqrt": ("square",),
    "linspace": ("geomspace",),
    "zeros": ("ones",),
    "ones": ("zeros",),
    "lstrip": ("strip",),
    "rstrip": ("strip",),
}
_OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Pow: (),
    ast.MatMult: (),
}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}
_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
_STATEMENTS = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr, ast.AnnAssign)
# Quote at most this many characters of a formula.
_QUOTED = 90
_LEAST_FIRST = ("variable", "argument", "term", "index", "function", "sign", "constant", "condition", "statement")

_Site = tuple[Any, str, int | None]


class Variant(NamedTuple):
    """A function with one change.

    phrase: the change, quoting the formula
    kind:   of _LEAST_FIRST
    code:   of the changed function
    """

    phrase: str
    kind: str
    code: CodeType

    @property
    def rank(self) -> int:
        return _LEAST_FIRST.index(self.kind)


class Number(NamedTuple):
    """A number in a function's source, or a parameter's default.

    phrase: where it is
    """

    phrase: str
    value: float
    site: _Site | None
    position: int = 0


class Text:
    """The source of one function, with its expressions.

    Raises LookupError where the function has no source, uses super() or has a while loop.
    """

    def __init__(self, function: FunctionType):
        self.function = function
        self._node = _node_of(function)
        self.name = _name_of(function, self._node)
        if "__class__" in function.__code__.co_freevars:
            raise LookupError("super() needs the class that the text stands in")
        if any(isinstance(node, ast.While) for node in ast.walk(self._node)):
            raise LookupError("a changed loop may never end")

    def variants(self) -> Iterator[Variant]:
        for site, node, statement in self._sites():
            for kind, new, words in _changes(node, self._names(node)):
                yield from self._made(kind, site, node, new, statement, words)
        yield from self._without_statements()

    def numbers(self) -> Iterator[Number]:
        """Yield the numbers that may be constants of a formula, and the numeric defaults of parameters."""
        for site, node, statement in self._sites():
            if _is_number(node) and site[1] != "slice" and not _is_axis(site):
                yield Number(f"{self.name}, in {_quoted(statement)}", float(node.value), site)
        arguments = inspect.signature(self.function).parameters.values()
        for i, argument in enumerate([a for a in arguments if a.default is not a.empty]):
            if isinstance(argument.default, float | int) and not isinstance(argument.default, bool):
                yield Number(f"{self.name}, {argument.name}", float(argument.default), None, i)

    def with_number(self, number: Number, value: float) -> CodeType | None:
        """Return the code with another number in this place; None if it does not compile."""
        assert number.site is not None
        return self._compiled(number.site, ast.Constant(value))

    def _sites(self) -> Iterator[tuple[_Site, Any, ast.AST]]:
        """Yield every expression: the slot that holds it, its node, and its statement."""

        def walk(parent: ast.AST, statement: ast.AST) -> Iterator[tuple[_Site, Any, ast.AST]]:
            for field, value in ast.iter_fields(parent):
                if field in ("annotation", "returns", "decorator_list", "defaults", "kw_defaults", "args") and (
                    not isinstance(parent, ast.Call) or field != "args"
                ):
                    continue
                children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
                for i, child in children:
                    if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                        continue
                    own = child if isinstance(child, ast.stmt) else statement
                    if isinstance(child, ast.expr) and not isinstance(getattr(child, "ctx", None), ast.Store):
                        yield (parent, field, i), child, own
                    yield from walk(child, own)

        yield from walk(self._node, self._node)

    def _names(self, node: ast.AST) -> tuple[str, ...]:
        """Return the function's other variables, if the node is one of its variables."""
        if not isinstance(node, ast.Name):
            return ()
        own = self.function.__code__
        names = (*own.co_varnames, *own.co_cellvars, *own.co_freevars)
        return tuple(name for name in names if name != node.id) if node.id in names else ()

    def _made(
        self, kind: str, site: _Site, old: ast.AST, new: ast.AST, statement: ast.AST, words: str
    ) -> Iterator[Variant]:
        code = self._compiled(site, new)
        if code is not None:
            before, after = _quoted(old), _quoted(new)
            there = _quoted(statement)
            where = f", in {there}" if there not in (before, "") else ""
            if words and not where:
                where = f" of {before}"
            yield Variant(f"{self.name}: {words or f'{after} in place of {before}'}{where}", kind, code)

    def _without_statements(self) -> Iterator[Variant]:
        for parent in ast.walk(self._node):
            body = getattr(parent, "body", None)
            if not isinstance(body, list):
                continue
            for i, statement in enumerate(body):
                plain = isinstance(statement, ast.Assign | ast.AugAssign | ast.For)
                if plain or (isinstance(statement, ast.If) and not _raises(statement)):
                    code = self._compiled((parent, "body", i), ast.Pass())
                    if code is not None:
                        yield Variant(f"{self.name}: {_quoted(statement)} left out", "statement", code)

    def _compiled(self, site: _Site, new: ast.AST) -> CodeType | None:
        parent, field, i = site
        old = getattr(parent, field) if i is None else getattr(parent, field)[i]
        _put(parent, field, i, ast.fix_missing_locations(ast.copy_location(new, old)))
        try:
            return _code(self._node, self.function.__code__)
        except (SyntaxError, ValueError, TypeError):
            return None
        finally:
            _put(parent, field, i, old)


def _put(parent: Any, field: str, i: int | None, value: ast.AST) -> None:
    if i is None:
        setattr(parent, field, value)
    else:
        getattr(parent, field)[i] = value


@functools.cache
def _module(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text())


def _node_of(function: FunctionType) -> Any:
    code = function.__code__
    try:
        tree = _module(code.co_filename)
    except (OSError, SyntaxError) as error:
        raise LookupError(str(error)) from None
    wanted = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef
    arguments = code.co_varnames[: code.co_argcount]
    for node in ast.walk(tree):
        if isinstance(node, wanted):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            named = isinstance(node, ast.Lambda) or node.name == code.co_name
            own = tuple(a.arg for a in [*node.args.posonlyargs, *node.args.args])
            if first == code.co_firstlineno and named and own == arguments:
                return node
    raise LookupError(f"{code.co_filename}: no text of {code.co_name}")


def _name_of(function: FunctionType, node: ast.AST) -> str:
    """Return the function's name; for a lambda the name of the argument or variable that it is assigned to."""
    if not isinstance(node, ast.Lambda):
        return function.__qualname__.replace("<locals>.", "").lstrip("_")
    for parent in ast.walk(_module(function.__code__.co_filename)):
        if isinstance(parent, ast.keyword) and parent.value is node and parent.arg:
            return parent.arg
        if isinstance(parent, ast.Assign) and parent.value is node:
            return ast.unparse(parent.targets[0])
    return function.__module__.rpartition(".")[2]


def _code(node: Any, right: CodeType) -> CodeType | None:
    """Compile a function's node with the free variables of `right`; None if they differ."""
    if isinstance(node, ast.Lambda):
        bare = ast.Lambda(_without_defaults(node.args), node.body)
        inside: list[ast.stmt] = [ast.Return(bare)]
    else:
        bare = _function(node.name, _without_defaults(node.args), node.body)
        inside = [bare]
    free = [ast.arg(name) for name in right.co_freevars]
    arguments = ast.arguments([], free, None, [], [], None, [])
    outer = _function("_outer", arguments, inside)
    module = ast.fix_missing_locations(ast.Module([outer], []))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        compiled = compile(module, right.co_filename, "exec")
    for name in (None, right.co_name):
        compiled = next(c for c in compiled.co_consts if isinstance(c, CodeType) and name in (None, c.co_name))
    return compiled if compiled.co_freevars == right.co_freevars else None


def _function(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    made = ast.FunctionDef(name, arguments, body, [], None, None)
    if "type_params" in ast.FunctionDef._fields:  # since Python 3.12
        setattr(made, "type_params", [])  # noqa: B010
    return made


def _without_defaults(arguments: ast.arguments) -> ast.arguments:
    def bare(a: ast.arg | None) -> Any:
        return None if a is None else ast.arg(a.arg)

    return ast.arguments(
        [bare(a) for a in arguments.posonlyargs],
        [bare(a) for a in arguments.args],
        bare(arguments.vararg),
        [bare(a) for a in arguments.kwonlyargs],
        [None] * len(arguments.kwonlyargs),
        bare(arguments.kwarg),
        [],
    )


def _quoted(node: ast.AST) -> str:
    """Return a node's source, shortened; of a statement with a body only the first line."""
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return ""
    text = ast.unparse(node).partition("\n")[0]
    text = re.sub(r"\b(?:\w+\.)?(?:p|t|params|tensors|options)\['(\w+)'\]", r"\1", text)
    text = re.sub(r"\b(?:rule|np|inputs|math)\.", "", text)
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 3]}..."


def _raises(statement: ast.If) -> bool:
    return isinstance(statement.body[0], ast.Raise)


def _is_number(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
    )


def _is_axis(site: _Site) -> bool:
    parent = site[0]
    return isinstance(parent, ast.Slice | ast.Subscript) or (
        isinstance(parent, ast.keyword) and parent.arg in ("axis", "keepdims", "ndmin")
    )


def _changes(node: Any, others: tuple[str, ...]) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield each change: its kind, the node that replaces the expression, and its own wording or ""."""
    if isinstance(node, ast.Name):
        yield from (("variable", ast.Name(name, ast.Load()), "") for name in others)
    elif isinstance(node, ast.BinOp):
        yield from _of_operator(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield ("sign" if isinstance(node.op, ast.USub) else "condition"), node.operand, ""
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif _is_number(node):
        yield from _of_number(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "condition", ast.Constant(not node.value), ""
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED and len(node.ops) == 1:
        yield "condition", ast.Compare(node.left, [_COMPARED[type(node.ops[0])]()], node.comparators), ""
    elif isinstance(node, ast.BoolOp):
        yield from (("condition", value, "") for value in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (("condition", branch, "") for branch in (node.body, node.orelse))
    elif isinstance(node, ast.Subscript):
        yield "index", node.value, ""
    elif isinstance(node, ast.Attribute) and node.attr == "T":
        yield "function", node.value, "not transposed"
    elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
        yield "argument", type(node)(node.elts[::-1], ast.Load()), ""


def _of_operator(node: ast.BinOp) -> Iterator[tuple[str, ast.AST, str]]:
    left, right = _quoted(node.left), _quoted(node.right)
    sign = _SIGNS.get(type(node.op), "")
    yield "term", node.left, f"{sign} {right} left out"
    if isinstance(node.op, ast.Mult | ast.Add):
        yield "term", node.right, f"{left} left out"
    elif not isinstance(node.op, ast.Pow):
        yield "term", node.right, ""
    for side in (node.left, node.right):
        if isinstance(side, ast.BinOp):
            yield from (
                ("term", part, f"only {_quoted(part)}")
                for part in (side.left, side.right)
                if isinstance(part, ast.BinOp)
            )
    for other in _OPERATORS.get(type(node.op), ()):
        yield "sign", ast.BinOp(node.left, other(), node.right), ""
    if isinstance(node.op, ast.Sub | ast.Div | ast.Pow | ast.MatMult):
        yield "argument", ast.BinOp(node.right, node.op, node.left), ""
    if isinstance(node.op, ast.Mult | ast.Div):
        yield "term", ast.BinOp(node, node.op, node.right), f"{sign} {right} twice"
    if isinstance(node.op, ast.Mult):
        yield "term", ast.BinOp(node, node.op, node.left), f"{left} twice"


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST, str]]:
    of = node.func
    name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
    for i, argument in enumerate(node.args[:2]):
        if not isinstance(argument, ast.Starred):
            yield "function", argument, f"{name} left out" if len(node.args) == 1 and i == 0 else ""
    if isinstance(of, ast.Attribute):
        yield "function", of.value, f"{name} left out"
    for other in _ALIKE.get(name, ()):
        renamed = ast.Attribute(of.value, other) if isinstance(of, ast.Attribute) else ast.Name(other)
        renamed.ctx = ast.Load()
        yield "function", ast.Call(renamed, node.args, node.keywords), ""
    for i in range(len(node.args) - 1):
        swapped = [*node.args[:i], node.args[i + 1], node.args[i], *node.args[i + 2 :]]
        yield "argument", ast.Call(node.func, swapped, node.keywords), ""
    for i in range(len(node.keywords)):
        yield "argument", ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :]), ""
    yield "term", ast.BinOp(node, ast.Pow(), ast.Constant(2)), f"{_quoted(node)} squared"


def _of_number(node: Any) -> Iterator[tuple[str, ast.AST, str]]:
    value: Any = node.value
    others = [0, 1, -value, 2 * value, value + 1, value - 1]
    others += [value / 2, 1 / value] if value else []
    kind = "index" if isinstance(value, int) else "constant"
    for other in dict.fromkeys(others):
        if other != value and (isinstance(value, float) or other == int(other)):
            whole = int(other) if isinstance(value, int) else other
            yield kind, ast.Constant(whole) if whole >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-whole)), ""
