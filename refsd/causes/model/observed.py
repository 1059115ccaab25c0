"""Observe the operations inside a model, one call at a time, and try known bugs in one of them.

Each call is expressed as a case of its page in golden/operations, so that the page's known bugs can be tried on
the tensors that the operation received inside the model.
"""

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refsd.causes.model.parts import parts, slices
from refsd.causes.operation.fitted_constants import fitted_through
from refsd.causes.operation.generated_mutants import simplest
from refsd.causes.operation.precisions import broken_requests, in_precisions
from refsd.causes.operation.unlisted import most_bugs, unlisted
from refsd.golden.judge import Mutant
from refsd.golden.mutations import with_bug
from refsd.golden.operation import Operation
from refsd.golden.operations import OPERATIONS
from refsd.networks.part_orders import alike
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, Numerics
from refsd.numerics.tensor import StoredTensor, stored

Arguments = Mapping[str, Any]
Named = Iterator[tuple[str, np.ndarray]]


class Call(NamedTuple):
    """One call of an operation.

    op:     its page in golden/operations
    inputs: its tensors
    params: its other parameters
    """

    op: str
    inputs: dict[str, StoredTensor]
    params: dict[str, Any]

    def wrong(self, mutant: Mutant) -> np.ndarray | None:
        """Return the result with the bug, in float32; None if it makes no difference or does not apply."""
        return with_bug(mutant, OPERATIONS[self.op], self.inputs, self.params)

    def answer(self, **others: np.ndarray) -> np.ndarray:
        """Return the result in float32. others: instead of the inputs of these names"""
        inputs = {**self.inputs, **{name: stored(y) for name, y in others.items()}}
        return OPERATIONS[self.op].answer(Arithmetic(FLOAT32), inputs, self.params)

    def simplest(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, result) where nothing is computed, or an input is the result, zeros or ones."""
        op = OPERATIONS[self.op]
        return simplest(op, self.inputs, op.complete(self.inputs, self.params))

    def unlisted(self, actual: np.ndarray, gap: bool = False) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, result) for bugs that the operation's page does not list.

        actual: the engine's answer; its shape may be another, as where an engine joins the heads
        gap:   as refsd/causes/operation/unlisted.py takes it
        """
        op = OPERATIONS[self.op]
        shape = self.answer().shape
        if actual.size == np.prod(shape, dtype=np.int64):
            yield from unlisted(op, self.inputs, op.complete(self.inputs, self.params), actual.reshape(shape), gap)

    def fitted(
        self, through: Callable[[np.ndarray], np.ndarray], actual: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, what later operations make of it) of other numbers of the parameters, as fitted_through."""
        op = OPERATIONS[self.op]
        yield from fitted_through(op, self.inputs, op.complete(self.inputs, self.params), through, actual)

    def from_elsewhere(self, tensors: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, result) where one input is another tensor, or one of the equal parts of another tensor.

        No more than `most_bugs` allows of each kind. tensors: what it means -> name -> values, the likeliest first
        """
        op = OPERATIONS[self.op]
        most = most_bugs(op, self.inputs, op.complete(self.inputs, self.params))
        for why, of in tensors.items():
            yield from itertools.islice(self._from_elsewhere(op, of, why), most)

    def _from_elsewhere(self, op: Operation, tensors: Mapping[str, np.ndarray], why: str) -> Named:
        done = set()
        for argument, own in self.inputs.items():
            right = own.values()
            if argument in ("weight", "bias") or right.dtype.kind != "f":
                continue
            read = [(n, *one) for n, y in tensors.items() for of in (parts, slices) for one in of(y, right.shape)]
            part_of = next(((part, name) for name, part, y in read if part and alike(y, right)), ("", ""))
            for name, y in tensors.items():
                for part, values in (*parts(y, right.shape), *slices(y, right.shape)):
                    key = argument, values.tobytes()
                    if key in done or np.array_equal(values, right):
                        continue
                    done.add(key)
                    inputs = {**self.inputs, argument: stored(values)}
                    with np.errstate(all="ignore"):
                        wrong = op.answer(Arithmetic(FLOAT32), inputs, self.params)
                    tail = f", not {''.join(part_of)}" if part and part_of[0] else f": {why}"
                    yield f"{argument} is read from {part}{name}{tail}", wrong

    def once_more(self, turns: Sequence[Mapping[str, Any]], tensors: Mapping[str, np.ndarray]) -> Named:
        """Yield (bug, result) where an input or the result goes through another operation, too, or two are swapped.

        turns:   arguments of each RoPE in the model
        tensors: earlier ones by name, parts of which may be gates
        """
        floats = {name: y.values() for name, y in self.inputs.items() if name not in ("weight", "bias")}
        for name, y in {**floats, "the result": self.answer()}.items():
            for words, other in _once_more(y, turns, tensors) if y.dtype.kind == "f" else ():
                with np.errstate(all="ignore"):
                    yield f"{name} {words}", other if name == "the result" else self.answer(**{name: other})
        for one, two in itertools.combinations(floats, 2):
            if floats[one].shape == floats[two].shape:
                yield f"{one} and {two} swapped", self.answer(**{one: floats[two], two: floats[one]})

    def in_precisions(self, declared: Numerics) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, result) for precisions lower than the declared one; requests that are ignored come first."""
        op = OPERATIONS[self.op]
        for words, numerics in broken_requests(op, self.inputs, declared).items():
            yield words, op.answer(Arithmetic(numerics), self.inputs, self.params)
        yield from in_precisions(OPERATIONS[self.op], self.inputs, self.params, declared)

    def with_weights(self, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        """Return the result with other weights of the same shape, in float32. bias: None keeps the call's own."""
        others = {"weight": weight} | ({} if bias is None else {"bias": bias})
        inputs = self.inputs | {name: stored(np.asarray(y, np.float32)) for name, y in others.items()}
        return OPERATIONS[self.op].answer(Arithmetic(FLOAT32), inputs, self.params)


class _Row(NamedTuple):
    """How a method of Arithmetic maps to its page in golden/operations.

    op:     the page
    inputs: argument of the method -> input of the page
    params: parameters, of the same name in both
    terms:  arguments -> number of terms in the longest sum of an element
    """

    op: str
    inputs: Mapping[str, str]
    params: tuple[str, ...] = ()
    terms: Callable[[Arguments], int] = lambda a: 1


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _last(name: str) -> Callable[[Arguments], int]:
    return lambda a: np.shape(a[name])[-1]


def _group(a: Arguments) -> int:
    return math.prod(np.shape(a["x"])[1:]) // a["num_groups"]


def _window(a: Arguments) -> int:
    return math.prod(np.shape(a["weight"])[1:])


_AFFINE, _STEPS = _same("x", "weight", "bias"), ("stride", "padding", "dilation", "groups")
_ROWS = {
    **{op: _Row(op, _same("x")) for op in ("silu", "gelu", "quick_gelu", "geglu")},
    **{op: _Row(op, _AFFINE, _STEPS, _window) for op in ("conv2d", "conv3d")},
    **{op: _Row(op, _AFFINE, ("num_groups", "eps"), _group) for op in ("group_norm", "group_norm_silu")},
    "linear": _Row("linear", _AFFINE, terms=_last("x")),
    "text_projection": _Row("linear", _same("x", "weight"), terms=_last("x")),
    "layer_norm": _Row("layer_norm", _AFFINE, ("eps",), _last("x")),
    "adaptive_layer_norm": _Row("adaptive_layer_norm", _same("x", "shift", "scale"), ("eps",), _last("x")),
    "rms_norm": _Row("rms_norm", _same("x", "weight"), ("eps",), _last("x")),
    "rms_norm_apart": _Row("rms_norm", _same("x", "weight"), ("eps",), _last("x")),
    "l2_norm": _Row("l2_norm", _same("x"), ("eps",), _last("x")),
    "rms_norm_channels": _Row("rms_norm_channels", _same("x", "weight"), ("eps",), lambda a: len(a["weight"])),
    "swiglu": _Row("swiglu", _same("x"), ("second_gates",)),
    "attention": _Row(
        "attention", _same("q", "k", "v", "mask", "sinks"), ("scale",), lambda a: max(np.shape(a["k"])[1::2])
    ),
    "timestep_embedding": _Row(
        "timestep_embedding", _same("t"), ("dim", "max_period", "freq_shift", "scale", "sin_first")
    ),
    "upsample_nearest": _Row("upsample_nearest", _same("x"), ("factor",)),
    "embedding": _Row("embedding", _same("ids", "weight")),
    "add": _Row("add", {"x": "a", "y": "b"}),
    "multiply": _Row("mul", {"x": "a", "y": "b"}),
    "modulate": _Row("modulate", _same("x", "shift", "scale")),
    "gated_add": _Row("gated_add", _same("x", "h", "gate")),
    "rope": _Row("rope", _same("x", "ids"), ("axes_dim", "theta", "halves")),
    "rope_halves": _Row("rope", _same("x", "ids"), ("axes_dim", "theta", "halves")),
    "halve": _Row("resize_nearest", {}),
    "apply": _Row("apply", {}),
}


def _once_more(y: np.ndarray, turns: Sequence[Mapping[str, Any]], tensors: Mapping[str, np.ndarray]) -> Named:
    made = lambda op, params, **more: OPERATIONS[op].answer(Arithmetic(FLOAT32), {"x": stored(y), **more}, params)
    yield from ((f"goes through {name}, too", made(name, {})) for name in _FUNCTIONS)
    for made_of, halves in itertools.product(turns if y.ndim == 4 else (), (False, True)):
        ids, params = made_of["ids"], {"axes_dim": made_of["axes_dim"], "theta": made_of["theta"], "halves": halves}
        if ids.shape[-2] >= y.shape[1] and sum(made_of["axes_dim"]) <= y.shape[-1]:
            own = stored(np.asarray(ids[..., : y.shape[1], :], np.int32))
            yield "is rotated by rope, too", made("rope", params, ids=own)
    shape = (y.shape[0], y.shape[-1])
    for name, of in tensors.items() if y.ndim == 3 else ():
        for part, gate in (*parts(of, shape), *slices(of, shape)):
            yield f"is multiplied by {part}{name}, too", y * gate[:, None]
            yield f"is multiplied by 1 + {part}{name}, too", y * (1 + gate[:, None])


_FUNCTIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "sigmoid", "tanh")
_NORMS = ("group_norm", "group_norm_silu", "layer_norm", "adaptive_layer_norm", "rms_norm", "rms_norm_apart")
# Method -> key of its products in Numerics.sums.
_SUMS = {
    "linear": "linear",
    "text_projection": "linear",
    "conv2d": "conv",
    "conv3d": "conv",
    "attention": "attention",
}
_UNIT = 2.0**-24  # half a unit in the last place of float32


def call_of(method: str, arguments: Arguments) -> Call | None:
    """Return the call in the terms of its page; None if the page cannot express it."""
    row = _ROWS[method]
    if method == "apply":
        return _applied(arguments["kernel"], arguments.get("arrays", ()), arguments.get("params", {}))
    if not row.inputs or (row.op == "rope" and "ids" not in arguments):
        return None
    given = {row.inputs[name]: arguments[name] for name in row.inputs if arguments.get(name) is not None}
    inputs = {
        name: stored(np.ascontiguousarray(y, np.int32 if name == "ids" else np.float32))
        for name, y in given.items()
    }
    params = {name: arguments[name] for name in row.params}
    op = row.op
    if method == "gelu" and arguments["approximate"] == "tanh":
        op = "gelu_tanh"
    if method == "attention" and arguments["diagonal"] is not None:
        params |= {"causal": True, "diagonal": arguments["diagonal"]}
    return Call(op, inputs, params)


def _applied(kernel: Callable[..., np.ndarray], arrays: Sequence[Any], params: Mapping[str, Any]) -> Call | None:
    """Return the call of a kernel whose name is its page's. The kernel's own names say which array is which input.

    A node of a graph names none: it has a page where one array can only be x.
    """
    page = OPERATIONS.get(kernel.__name__)
    if page is None:
        return None
    named = {**inspect.signature(kernel).bind_partial(*arrays, **params).arguments}
    if [*page.inputs] == ["x"] and len(arrays) == 1:
        named = {"x": arrays[0], **params}
    given = {name.rstrip("?"): named.pop(name.rstrip("?"), None) for name in page.inputs}
    if any(given.get(name, 0) is None for name in page.inputs):
        return None
    inputs = {name: stored(np.asarray(y, np.float32)) for name, y in given.items() if y is not None}
    return Call(page.name, inputs, named)


def _one_turn(one: np.ndarray, other: np.ndarray) -> bool:
    """Return True for angles that an engine may round to one another; a graph has theirs within a turn."""
    return one.shape == other.shape and bool(np.abs(np.exp(1j * one) - np.exp(1j * other)).max(initial=0) < 1e-3)


class Observed(Arithmetic):
    """Arithmetic that records its calls, and can replace the result of one of them.

    A sum of K terms of random signs, added one by one, loses at most u sqrt(K/2) of its RMS, where u = 2^-24: after
    k terms it has grown to sqrt(k), and each addition loses at most u of that, at random. Sums in blocks, or in
    several lanes, lose less; an engine may add in any order.

    ops:     the operation of each call
    losses:  what an honest float32 engine may lose in each call, as a share of the result's RMS. The loss of a norm
             comes from its own bound, but only if `instead` is None
    results: the result of each call, as far as `keeps` bytes hold them; then None
    at:      index of the call that is shown to `instead`; or indices of several
    instead: call -> its replaced result; None: compute the right one
    angles:  of each RoPE so far, with their arguments
    before:  results of an earlier run, which are taken for the calls before the first of `at`
    """

    def __init__(
        self,
        numerics,
        deviations=(),
        at: int | Sequence[int] = -1,
        instead: Callable[[Call], Any] | None = None,
        before: Sequence[np.ndarray | None] = (),
        keeps: int = 0,
    ):
        super().__init__(numerics, deviations)
        self.ops: list[str] = []
        self.losses: list[float] = []
        self.results: list[np.ndarray | None] = []
        self._at = (at,) if isinstance(at, int) else at
        self._instead, self._before, self._room = instead, before, keeps
        self._inside = False
        self._measures = instead is None
        # An engine that rounds nothing between operations, and sums as the declared one does.
        factors = {"conv" if op == "conv" else "products": "f16" for op in numerics.sums}
        self.float32 = replace(
            FLOAT32, one_pass=numerics.one_pass, logistic=numerics.logistic, sums=numerics.sums, **factors
        )
        # Half a unit of float16, for sums that accumulate in it; longer steps round less often.
        self._summed = {op: 2.0**-11 / math.sqrt(how.step) for op, how in numerics.sums.items()}
        self.angles: dict[Any, tuple[np.ndarray, dict[str, Any]]] = {}

    def rope_angles(self, ids, axes_dim, theta):
        """Return the angles, and remember their arguments: the page of RoPE takes these instead of angles."""
        angle = super().rope_angles(ids, axes_dim, theta)
        made_of = {"ids": np.asarray(ids), "axes_dim": tuple(axes_dim), "theta": theta}
        self.angles[made_of["ids"].tobytes(), tuple(axes_dim), theta] = np.asarray(angle), made_of
        return angle

    def _with_ids(self, method: str, arguments: Arguments) -> Arguments:
        """Add the angles' arguments to RoPE's; the angles may be two results concatenated along the tokens."""
        angle = np.asarray(arguments["angle"])
        for one, made_of in self.angles.values():
            if _one_turn(one, angle):
                return {**arguments, **made_of, "halves": method == "rope_halves"}
        for one, made_of in self.angles.values():
            for other, more in self.angles.values():
                alike = one.shape[0] == other.shape[0] and one.shape[2:] == other.shape[2:]
                if alike and _one_turn(np.concatenate([one, other], axis=1), angle):
                    ids = np.concatenate([made_of["ids"], more["ids"]], axis=-2)
                    return {**arguments, **made_of, "ids": ids, "halves": method == "rope_halves"}
        return arguments

    def observe(self, method: str, right: Callable[[], np.ndarray], arguments: Arguments) -> np.ndarray:
        """Answer a call of `method`. Calls that an operation makes itself are not counted."""
        if self._inside:
            return right()
        self.ops.append(_ROWS[method].op if method != "apply" else arguments["kernel"].__name__)
        unit = self._summed.get(_SUMS.get(method, ""), _UNIT)
        self.losses.append(unit * math.sqrt(_ROWS[method].terms(arguments) / 2))
        index = len(self.ops) - 1
        known = self._before[index] if index < min(*self._at, len(self._before)) else None
        if known is not None:
            return known.copy()
        shown = index in self._at and self._instead is not None
        if shown and _ROWS[method].op == "rope":
            arguments = self._with_ids(method, arguments)
        call = call_of(method, arguments) if shown else None
        other = self._instead(call) if call is not None and self._instead is not None else None
        if other is not None:
            return self._round(other)
        self._inside = True
        try:
            y = right()
        finally:
            self._inside = False
        if self._measures and method in _NORMS and self.numerics.compute == "float32":
            self.losses[-1] = self._norms_loss(call_of(method, arguments), y)
        self._keep(y)
        return y

    def _keep(self, y: np.ndarray) -> None:
        self._room -= y.nbytes
        self.results.append(y.copy() if self._room > 0 else None)

    def pass_over(self, method: str) -> None:
        """Count a call that is skipped because its result is not needed."""
        self.ops.append(_ROWS[method].op)
        self.losses.append(0.0)
        self.results.append(None)

    def _norms_loss(self, call: Call | None, y: np.ndarray) -> float:
        """Return the loss from the operation's own bound: a mean far from zero costs digits of the variance."""
        assert call is not None
        op, size = OPERATIONS[call.op], float(np.sqrt(np.mean(np.square(y, dtype=np.float64))))
        spread = op.bound_of(self.float32, call.inputs, call.params, y).spread
        return float(np.sqrt(np.mean(np.square(spread)))) / size if size else 0.0


def _observed(method: str) -> Callable[..., np.ndarray]:
    right = getattr(Arithmetic, method)
    signature = inspect.signature(right)

    @functools.wraps(right)
    def answer(self, *arguments, **named):
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        return self.observe(method, lambda: right(self, *arguments, **named), bound.arguments)

    return answer


for _method in _ROWS:
    setattr(Observed, _method, _observed(_method))
