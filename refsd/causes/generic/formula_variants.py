"""Change one expression of a reference function at a time, as an engine may get it wrong.

A bug is a kind of mistake at a place. The place is an expression of a function that the reference runs; the kinds
are few: another variable, a term dropped or with the other sign, another function, an index off by one, a statement
left out. All are made from the function's source; none is listed by hand.
"""

import ast
import contextlib
import copy
import functools
import inspect
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from refsd.causes.generic.changed_expressions import (
    TOGETHER,
    Without,
    changes,
    is_comparison,
    is_number,
    is_text,
    quoted,
)

_STATEMENTS = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr, ast.AnnAssign)
_LEAST_FIRST = (
    "variable",
    "argument",
    "term",
    "index",
    "function",
    "sign",
    "constant",
    "condition",
    "statement",
    "exchange",
)

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
    of:     a term that the number multiplies; None: the number stands alone
    """

    phrase: str
    value: float
    site: _Site | None
    position: int = 0
    of: Any = None

    def written(self, value: float) -> ast.AST:
        new = ast.Constant(value)
        return new if self.of is None else ast.BinOp(self.of, ast.Mult(), new)


class Text:
    """The source of one function, with its expressions.

    Raises LookupError where the function has no source, uses super() or has a while loop.
    """

    def __init__(self, function: FunctionType):
        self.function = function
        self._node = _node_of(function)
        self._bare, self._module = _module_with(self._node, function.__code__)
        self.name = _name_of(function, self._node)
        if "__class__" in function.__code__.co_freevars:
            raise LookupError("super() needs the class that the text stands in")
        if any(isinstance(node, ast.While) for node in ast.walk(self._node)):
            raise LookupError("a changed loop may never end")

    def variants(self) -> Iterator[Variant]:
        for site, node, statement in self._sites():
            if isinstance(site[0], ast.Compare) and any(map(is_text, [site[0].left, *site[0].comparators])):
                continue  # no engine compares another variable with a name
            for kind, new, words in changes(node, self._names(node), self._flags):
                yield from self._made(kind, site, node, new, statement, words)
        yield from self._without_statements()
        yield from self._without_functions()
        yield from self._exchanged()

    def numbers(self) -> Iterator[Number]:
        """Yield the numbers that may be constants of a formula, and the numeric defaults of parameters."""
        for site, node, statement in self._sites():
            if is_number(node) and site[1] != "slice" and not _is_axis(site):
                yield Number(f"{self.name}, in {quoted(statement)}", float(node.value), site)
        arguments = inspect.signature(self.function).parameters.values()
        for i, argument in enumerate([a for a in arguments if a.default is not a.empty]):
            if isinstance(argument.default, float | int) and not isinstance(argument.default, bool):
                yield Number(f"{self.name}, {argument.name}", float(argument.default), None, i)

    def factors(self) -> Iterator[Number]:
        """Yield a factor, 1, of each term of a sum; of the sums inside, their own terms have one."""
        for site, node, statement in self._sites():
            if _is_sum(site[0]) and not isinstance(node, ast.Constant) and not _is_sum(node):
                phrase = f"{self.name}: the factor of {quoted(node)}, in {quoted(statement)}"
                yield Number(phrase, 1.0, site, of=node)

    def results(self, values: Mapping[str, float]) -> Iterator[Number]:
        """Yield the results that the function keeps in variables or returns, which may be constants in an engine.

        values: variable -> its number in a run; "": the result
        """
        kept = [n for n in ast.walk(self._node) if isinstance(n, ast.Assign | ast.Return)]
        for node in kept:
            name = "" if isinstance(node, ast.Return) else getattr(node.targets[0], "id", "?")
            value: Any = node.value
            if name in values and not is_number(value) and not isinstance(value, ast.Name):
                text = f"{name}, in {self.name}, is one number throughout" if name else f"{self.name} is one number"
                yield Number(text, values[name], (node, "value", None))
        if isinstance(self._node, ast.Lambda) and "" in values:
            yield Number(f"{self.name} is one number", values[""], (self._node, "body", None))

    def with_numbers(self, numbers: Sequence[tuple[Number, float]]) -> CodeType | None:
        """Return the code with other numbers in these places; None if it does not compile."""
        (number, value), *others = numbers
        assert number.site is not None
        parent, field, i = number.site
        old = getattr(parent, field) if i is None else getattr(parent, field)[i]
        if not others:
            return self._compiled(number.site, number.written(value))
        _put(parent, field, i, ast.fix_missing_locations(ast.copy_location(number.written(value), old)))
        try:
            return self.with_numbers(others)
        finally:
            _put(parent, field, i, old)

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

    @property
    def _variables(self) -> tuple[str, ...]:
        own = self.function.__code__
        return (*own.co_varnames, *own.co_cellvars, *own.co_freevars)

    @functools.cached_property
    def _flags(self) -> set[str]:
        """Return the variables that are True or False: comparisons, and parameters that are declared so."""
        kept = [n.targets[0] for n in ast.walk(self._node) if isinstance(n, ast.Assign) and is_comparison(n.value)]
        declared = [a.arg for a in self._node.args.args if getattr(a.annotation, "id", "") == "bool"]
        return {*declared, *(target.id for target in kept if isinstance(target, ast.Name))}

    def _names(self, node: ast.AST) -> tuple[str, ...]:
        """Return the function's other variables, if the node is one of its variables; a flag's are other flags."""
        if not isinstance(node, ast.Name) or node.id not in self._variables:
            return ()
        flag = node.id in self._flags
        return tuple(name for name in self._variables if name != node.id and (name in self._flags) >= flag)

    def _made(
        self, kind: str, site: _Site, old: ast.AST, new: ast.AST, statement: ast.AST, words: str
    ) -> Iterator[Variant]:
        code = self._compiled(site, new)
        if code is not None:
            before, after = quoted(old), quoted(new)
            if isinstance(site[0], ast.UnaryOp) and isinstance(site[0].op, ast.USub) and is_number(old):
                before, after = f"-{before}", f"-{after}".removeprefix("--")
            there = quoted(statement)
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
                        yield Variant(f"{self.name}: {quoted(statement)} left out", "statement", code)

    def _without_functions(self) -> Iterator[Variant]:
        for names in TOGETHER:
            bare = Without(names)
            node = bare.visit(copy.deepcopy(self._node))
            if bare.met < 2 or {*names} != bare.names:
                continue
            try:
                code = _code(_module_with(node, self.function.__code__)[1], self.function.__code__)
            except (SyntaxError, ValueError, TypeError):
                continue
            if code is not None:
                yield Variant(f"{self.name}: {' and '.join(names)} left out throughout", "function", code)

    def _exchanged(self) -> Iterator[Variant]:
        """Exchange two variables in a statement, and throughout the text."""
        own = self.function.__code__
        for scope in [n for n in ast.walk(self._node) if isinstance(n, (*_STATEMENTS, ast.FunctionDef))]:
            loaded = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            names = [name for name in own.co_varnames if any(n.id == name for n in loaded)]
            where = "throughout" if scope is self._node else f"in {quoted(scope)}"
            for one, other in itertools.combinations(names, 2):
                met = [n for n in loaded if n.id in (one, other)]
                for node in met:
                    node.id = other if node.id == one else one
                with contextlib.suppress(SyntaxError, ValueError, TypeError):
                    if (code := self._code()) is not None:
                        yield Variant(f"{self.name}: {one} and {other} exchanged {where}", "exchange", code)
                for node in met:
                    node.id = other if node.id == one else one

    def _compiled(self, site: _Site, new: ast.AST) -> CodeType | None:
        parent, field, i = site
        old = getattr(parent, field) if i is None else getattr(parent, field)[i]
        _put(parent, field, i, ast.fix_missing_locations(ast.copy_location(new, old)))
        try:
            return self._code()
        except (SyntaxError, ValueError, TypeError):
            return None
        finally:
            _put(parent, field, i, old)

    def _code(self) -> CodeType | None:
        """Compile the text as it stands now."""
        if isinstance(self._bare, ast.Lambda):  # its expression may have been replaced; statements are shared
            self._bare.body = self._node.body
        return _code(self._module, self.function.__code__)


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


def _module_with(node: Any, right: CodeType) -> tuple[ast.Lambda | ast.FunctionDef, ast.Module]:
    """Return a function's node without defaults, and a module that gives it the free variables of `right`."""
    if isinstance(node, ast.Lambda):
        bare = ast.Lambda(_without_defaults(node.args), node.body)
        inside: list[ast.stmt] = [ast.Return(bare)]
    else:
        bare = _function(node.name, _without_defaults(node.args), node.body)
        inside = [bare]
    arguments = ast.arguments([], [ast.arg(name) for name in right.co_freevars], None, [], [], None, [])
    return bare, ast.fix_missing_locations(ast.Module([_function("_outer", arguments, inside)], []))


def _code(module: ast.Module, right: CodeType) -> CodeType | None:
    """Compile the function in such a module; None if its free variables are not those of `right`."""
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
    own = copy.deepcopy(arguments)
    own.defaults, own.kw_defaults = [], [None] * len(own.kwonlyargs)
    for argument in ast.walk(own):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return own


def _raises(statement: ast.If) -> bool:
    return isinstance(statement.body[0], ast.Raise)


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub)


def _is_axis(site: _Site) -> bool:
    parent = site[0]
    return isinstance(parent, ast.Slice | ast.Subscript) or (
        isinstance(parent, ast.keyword) and parent.arg in ("axis", "keepdims", "ndmin")
    )
