"""Change one expression of a formula: another variable, a term dropped, another function, an index off by one."""

import ast
import re
from collections.abc import Container, Iterator
from typing import Any

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
    "floor": ("ceil", "rint", "trunc"),
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
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div,),
}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}
_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
# Functions that are left out together, throughout a text: as where logarithms should be interpolated.
TOGETHER = (("log", "exp"), ("log10",), ("log",), ("exp",), ("expm1",), ("sqrt",))
# Quote at most this many characters of a formula.
_QUOTED = 90


def quoted(node: ast.AST) -> str:
    """Return a node's source, shortened; of a statement with a body only the first line."""
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return ""
    text = ast.unparse(node).partition("\n")[0].removeprefix("return ")
    text = re.sub(r"\b(?:\w+\.)?(?:p|t|params|tensors|options)\['(\w+)'\]", r"\1", text)
    text = re.sub(r"\b(?:rule|np|inputs|math)\.", "", text)
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 3]}..."


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


class Without(ast.NodeTransformer):
    """Replaces calls of some functions by their argument. met: how many; names: which of them"""

    def __init__(self, names: tuple[str, ...]):
        self._left_out, self.met, self.names = names, 0, set[str]()

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in self._left_out or len(node.args) != 1:
            return node
        self.met += 1
        self.names.add(name)
        return node.args[0]


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_comparison(node: Any) -> bool:
    """Return True for what is True or False: a comparison, or several joined by and, or, not."""
    if isinstance(node, ast.BoolOp):
        return all(map(is_comparison, node.values))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def changes(node: Any, others: tuple[str, ...], flags: Container[str] = ()) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield each change: its kind, the node that replaces the expression, and its own wording or ""."""
    if isinstance(node, ast.Name):
        for value in (True, False) if node.id in flags else ():
            yield "variable", ast.Constant(value), f"{node.id} taken for {value}"
        yield from (("variable", ast.Name(name, ast.Load()), "") for name in others)
    elif isinstance(node, ast.BinOp):
        yield from _of_operator(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield ("sign" if isinstance(node.op, ast.USub) else "condition"), node.operand, ""
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif is_number(node):
        yield from _of_number(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "condition", ast.Constant(not node.value), ""
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED and len(node.ops) == 1:
        yield "condition", ast.Compare(node.left, [_COMPARED[type(node.ops[0])]()], node.comparators), ""
    elif isinstance(node, ast.BoolOp):
        yield from (("condition", value, "") for value in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (("condition", branch, "") for branch in (node.body, node.orelse))
    elif isinstance(node, ast.Subscript) and not is_text(node.slice):
        yield "index", node.value, ""
    elif isinstance(node, ast.Attribute) and node.attr == "T":
        yield "function", node.value, "not transposed"
    elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
        yield "argument", type(node)(node.elts[::-1], ast.Load()), ""


def _of_operator(node: ast.BinOp) -> Iterator[tuple[str, ast.AST, str]]:
    left, right = quoted(node.left), quoted(node.right)
    sign = _SIGNS.get(type(node.op), "")
    yield "term", node.left, f"{sign} {right} left out"
    if isinstance(node.op, ast.Mult | ast.Add):
        yield "term", node.right, f"{left} left out"
    elif not isinstance(node.op, ast.Pow):
        yield "term", node.right, ""
    for side in (node.left, node.right):
        if isinstance(side, ast.BinOp):
            yield from (
                ("term", part, f"only {quoted(part)}")
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
    if isinstance(of, ast.Attribute) and name in ("floor", "rint"):
        half = ast.BinOp(node.args[0], ast.Add(), ast.Constant(0.5))
        yield "function", _called(of.value, "floor", half), ""
    if isinstance(of, ast.Attribute) and name in ("linspace", "interp"):
        yield from (("function", _called(of.value, other, node), "") for other in ("rint", "floor"))
    for i in range(len(node.args) - 1):
        swapped = [*node.args[:i], node.args[i + 1], node.args[i], *node.args[i + 2 :]]
        yield "argument", ast.Call(node.func, swapped, node.keywords), ""
    for i in range(len(node.keywords)):
        yield "argument", ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :]), ""
    if node.args and isinstance(node.args[0], ast.BinOp):
        first, rest = node.args[0], node.args[1:]
        for side in ("left", "right"):
            part = getattr(first, side)
            again = ast.Call(of, [part, *rest], node.keywords)
            parts: dict[str, Any] = {"left": first.left, "op": first.op, "right": first.right, side: again}
            whole = ast.Call(of, [ast.BinOp(**parts), *rest], node.keywords)
            yield "function", whole, f"{name} of {quoted(part)}, too"
            yield "function", ast.BinOp(**parts), ""
    yield "term", ast.BinOp(node, ast.Pow(), ast.Constant(2)), f"{quoted(node)} squared"


def _called(module: ast.expr, name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(module, name, ast.Load()), [argument], [])


def _of_number(node: Any) -> Iterator[tuple[str, ast.AST, str]]:
    value: Any = node.value
    others = [0, 1, -value, 2 * value, value + 1, value - 1]
    others += [value / 2, 1 / value] if value else []
    kind = "index" if isinstance(value, int) else "constant"
    for other in dict.fromkeys(others):
        if other != value and (isinstance(value, float) or other == int(other)):
            whole = int(other) if isinstance(value, int) else other
            yield kind, ast.Constant(whole) if whole >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-whole)), ""
