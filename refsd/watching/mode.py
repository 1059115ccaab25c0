"""See every operation of torch as the device runs it, and judge it from its real inputs."""

import contextlib
import fnmatch
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from refsd.numerics.errors import BadInput
from refsd.watching import judging
from refsd.watching.calls import Call, NotJudged
from refsd.watching.causes import causes
from refsd.watching.report import Operations, WrongCall, described
from refsd.watching.reproducing import reproduce

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Operations whose bounds are those of real numbers.
_OF_REAL_NUMBERS = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "mv",
    "dot",
    "sum",
    "mean",
    "cumsum",
    "div",
    "reciprocal",
    "_local_scalar_dense",
}
_TOO_LARGE = "larger than the limit of memory"
_UNWRITTEN = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize")


class Choice(NamedTuple):
    """Which calls are judged.

    modules: glob on the names of modules; every: each n-th call; unique: each operation, shape, stride and dtype
    once; seconds: of judging; memory: bytes of a call's tensors in float64; rows: of a product, 0 for all
    """

    modules: str = "*"
    every: int = 1
    unique: bool = False
    seconds: float = math.inf
    memory: float = 2.0**31
    rows: int = 0


class Places:
    """The modules that are running, and their names.

    root: only calls inside of this module count; None: all
    """

    def __init__(self, root: torch.nn.Module | None):
        self._root, self._running = root, []
        self._names = {} if root is None else {id(module): name for name, module in root.named_modules()}

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module, args) -> None:
        if self._root is None and not self._running:
            title = type(module).__name__
            for name, one in module.named_modules():
                self._names[id(one)] = f"{title}.{name}" if name else title
        self._running.append(module)

    def _leave(self, module, args, y) -> None:
        if self._running and any(one is module for one in self._running):
            while self._running.pop() is not module:
                pass

    @property
    def inside(self) -> bool:
        return self._root is None or any(module is self._root for module in self._running)

    @property
    def name(self) -> str:
        """The innermost running module that has a name."""
        named = (self._names[id(module)] for module in reversed(self._running) if id(module) in self._names)
        return next(named, "")


class Mode(TorchDispatchMode):
    """Judge calls while they run, and write into a report."""

    def __init__(self, report: Operations, places: Places, choice: Choice):
        super().__init__()
        self._report, self._places, self._choice = report, places, choice
        self._seen: set[Any] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(t not in (torch.Tensor, torch.nn.Parameter) for t in types):
            return NotImplemented
        if _is_composite(func, args, kwargs):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        if not self._places.inside:
            return func(*args, **kwargs)
        report = self._report
        report.total += 1
        schema = func._schema
        op = schema.name.removeprefix("aten::")
        given = _arguments(func, args, kwargs)
        skipped = self._skips(op, func, given)
        if skipped:
            report.not_judged[skipped, op] += 1
            return func(*args, **kwargs)
        begun = time.perf_counter()
        if schema.is_mutable:
            # All arguments, for another one may share the memory that is written: x.add_(x).
            if _plain(op) in judging.VIEWS:
                given = {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
            else:
                given = _copied(given)
        report.seconds += time.perf_counter() - begun
        y = func(*args, **kwargs)
        begun = time.perf_counter()
        outputs = tuple(tree_leaves(y)) if y is not None else tuple(tree_leaves(args[:1]))
        for call in _each(
            Call(_plain(op), str(func), given, outputs, self._places.name, report.total, schema, self._choice.rows)
        ):
            self._judge(call)
        report.seconds += time.perf_counter() - begun
        return y

    def _skips(self, op: str, func, given) -> str:
        """Say why a call is not judged before it runs; "" if it is."""
        choice = self._choice
        if torch.Tag.nondeterministic_seeded in func.tags and given.get("dropout_p") != 0:
            return "random numbers"
        if op in _UNWRITTEN:
            return "memory that is not written yet"
        if not fnmatch.fnmatchcase(self._places.name, choice.modules):
            return "in other modules"
        if self._report.total % choice.every:
            return f"only every {choice.every}th call"
        if self._report.seconds > choice.seconds:
            return f"after the {choice.seconds:g} seconds"
        tensors = [t for t in tree_leaves(list(given.values())) if isinstance(t, torch.Tensor)]
        if choice.unique:
            key = (str(func), *((tuple(t.shape), t.stride(), t.dtype) for t in tensors))
            if key in self._seen:
                return "same shapes as before"
            self._seen.add(key)
        if any(t.is_meta or t.layout is not torch.strided for t in tensors):
            return "tensors without numbers, or sparse ones"
        if _plain(op) in _OF_REAL_NUMBERS and any(t.is_complex() for t in tensors):
            return "sums, products and quotients of complex numbers"
        if _plain(op) in ("index", "index_put") and any(t.dtype is torch.uint8 for t in tensors[1:]):
            return "an index of bytes"
        return _TOO_LARGE if self._is_too_large(op, tensors) else ""

    def _is_too_large(self, op: str, several) -> bool:
        numbers = sum(t.numel() for t in tree_leaves(list(several)) if isinstance(t, torch.Tensor))
        return op not in judging.VIEWS and 8 * numbers > self._choice.memory

    def _judge(self, call: Call) -> None:
        report = self._report
        try:
            if self._is_too_large(call.op, (*call.args.values(), *call.outputs)):
                raise NotJudged(_TOO_LARGE)
            verdict = judging.judge(call)
            infinite = report.not_finite is None and _makes_infinity(call)
        except NotJudged as reason:
            report.not_judged[str(reason), call.op] += 1
            return
        except Exception as error:  # a fault of refsd's must not end the program that is watched; the report has it
            report.not_judged[f"refsd failed: {type(error).__name__}: {error}", call.op] += 1
            return
        report.judged += 1
        report.operations.add(call.op)
        if not verdict.reason and verdict.margin > report.margin:
            report.margin, report.nearest = verdict.margin, f"{call.function} in {call.place or 'no module'}"
        if infinite:
            honest = bool(not verdict.reason)
            report.not_finite = (described(call), honest)
        if not verdict.reason:
            return
        report.wrong_calls += 1
        if report.first is None:
            kept = call._replace(args=_copied(dict(call.args)), outputs=_copied(call.outputs))
            report.first = WrongCall(described(call), causes(call, verdict), kept, verdict)
        else:
            report.others[call.function] += 1


def _each(call: Call) -> list[Call]:
    """Split a call on lists of tensors (foreach) into one for each."""
    if not call.op.startswith("_foreach_"):
        return [call]
    lists = {k: v for k, v in call.args.items() if isinstance(v, (list, tuple)) and v}
    return [
        call._replace(
            op=call.op.removeprefix("_foreach_"),
            args={_SINGULAR.get(k, k): lists[k][i] if k in lists else v for k, v in call.args.items()},
            outputs=(y,),
        )
        for i, y in enumerate(call.outputs)
    ]


# Names of foreach's arguments, where they differ from those of the plain operation.
_SINGULAR = {"scalar": "other", "scalars": "other", "tensors1": "end"}


def _plain(op: str) -> str:
    """Return the name of an in-place operation without its underscore."""
    return op.removesuffix("_") if not op.endswith("__") else op


def _is_composite(func, args, kwargs) -> bool:
    """Return True for an operation that torch computes by others: in inference mode it arrives here as it is."""
    name = func.name()
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE):
        return False
    kind = next((t.device.type for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)), "cpu")
    return not torch._C._dispatch_has_kernel_for_dispatch_key(name, kind.upper())


def _arguments(func, args, kwargs) -> dict[str, Any]:
    """Return the arguments by the schema's names, with defaults."""
    given = {}
    for i, a in enumerate(func._schema.arguments):
        given[a.name] = args[i] if i < len(args) else kwargs.get(a.name, a.default_value)
    return given


def _copied(value):
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone(), value)


def _makes_infinity(call: Call) -> bool:
    """Return True if an output has NaN or infinity, and no input has."""
    return _odd(call.outputs) and not _odd(call.args.values())


def _odd(several) -> bool:
    for x in tree_leaves(list(several)):
        floating = isinstance(x, torch.Tensor) and x.is_floating_point() and x.element_size() > 1
        if floating and not x.isfinite().all():
            return True
        if isinstance(x, float) and not math.isfinite(x):
            return True
    return False


@contextlib.contextmanager
def watched(
    module, choice: tuple, folder: str | Path | None, show: Callable[[str], Any] | None
) -> Iterator[Operations]:
    """Judge the operations inside the `with` block; see refsd.watch."""
    if module is not None and not isinstance(module, torch.nn.Module):
        raise BadInput(f"a {type(module).__name__} is no module of torch: leave it out to judge all that runs")
    report = Operations("torch" if module is None else type(module).__name__)
    places = Places(module)
    with places.followed(), Mode(report, places, Choice(*choice)):
        yield report
    if report.first is not None and folder is not None:
        report.first.written = reproduce(report.first, Path(folder))
    if show is not None:
        show(str(report))
