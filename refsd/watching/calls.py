"""One call of an operation of torch, with its real tensors, and what each of its outputs should be."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.engines.torch.state import array
from refsd.golden.bounds import Run
from refsd.golden.rounding import Bound, Terms
from refsd.numerics.profiles import FLOAT64, TORCH_BF16, TORCH_F16, TORCH_F32, Float16Sums, Numerics
from refsd.numerics.tensor import StoredTensor, stored

_NUMERICS = {
    "torch.float64": FLOAT64,
    "torch.float32": TORCH_F32,
    "torch.float16": TORCH_F16,
    "torch.bfloat16": TORCH_BF16,
    "torch.complex64": TORCH_F32,
    "torch.complex128": FLOAT64,
}
_SMALL_FLOATS = {
    "torch.float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "torch.float8_e5m2": ml_dtypes.float8_e5m2,
}
# How many partial sums a GPU may round to float16 and add, with allow_fp16_reduced_precision_reduction.
_SPLITS = 16
# torch.set_float32_matmul_precision -> type to which the factors of float32 products are rounded.
_PRODUCTS = {"highest": None, "high": "tf32", "medium": "bf16"}


class NotJudged(Exception):
    """The reason why a call cannot be judged, in words."""


class Call(NamedTuple):
    """One call, after it ran.

    op:       name without namespace and overload, of an in-place operation that of the plain one: "add"
    function: as torch prints it: "aten.add_.Tensor"
    args:     parameter of the schema -> value; tensors that the call overwrote as they were before
    outputs:  tensors and numbers in the order of the schema's results; lists of tensors are flattened
    place:    the module that made the call, by its name in the watched module; "" outside of any
    number:   position among all calls, from 1
    schema:   of the function, as torch declares it
    rows:     at most so many rows of a product are judged, evenly spread; 0: all
    """

    op: str
    function: str
    args: Mapping[str, Any]
    outputs: tuple[Any, ...]
    place: str
    number: int
    schema: Any = None
    rows: int = 0

    @property
    def numerics(self) -> Numerics:
        """The rounding that torch declares for the first output: by its dtype, device, flags and memory layout."""
        y = self.outputs[0]
        if str(y.dtype) not in _NUMERICS:
            raise NotJudged(f"{y.dtype}")
        numerics = _NUMERICS[str(y.dtype)]
        if self.op == "native_group_norm" and y.device.type == "cpu" and _channels_last(self.args["input"]):
            numerics = replace(numerics, one_pass=("group_norm",))
        if numerics is TORCH_F32:
            products, conv = _products_in_float32(y.device.type)
            numerics = replace(numerics, products=products, conv=conv)
        elif numerics is TORCH_F16 and y.device.type == "cuda":
            numerics = replace(numerics, sums=_sums_in_float16(self.op, self.args))
        return numerics

    def chosen(self, count: int) -> slice | np.ndarray:
        """Return which of so many rows are judged, the first and the last among them."""
        if not self.rows or count <= self.rows:
            return slice(None)
        return np.unique(np.linspace(0, count - 1, self.rows).astype(int))

    @property
    def run(self) -> Run:
        """Arguments for golden's bounds; the truth is set by `expected`."""
        return Run(self.numerics, {}, {}, {}, np.zeros(0), {})


class Question(NamedTuple):
    """A call as a case of an operation of golden/operations.

    op:     the operation's name
    inputs: its inputs, with the values that the call got
    params: its parameters
    laid_out: the call's output -> the operation's "y"
    stored:   y -> sizes of the results that torch rounds to the output's dtype before it; None: there are none
    """

    op: str
    inputs: Mapping[str, StoredTensor]
    params: Mapping[str, Any]
    laid_out: Callable[[np.ndarray], np.ndarray] = lambda y: y
    stored: Callable[[np.ndarray], np.ndarray] | None = None


class Expected(NamedTuple):
    """What an output should be. truth: float64, integers or booleans; bound: of an honest error; None: exact"""

    truth: np.ndarray
    bound: Bound | None = None


# What a rule answers: a case of a page, or the expected outputs.
Answer = Question | list[Expected]
Rule = Callable[[Call], Answer]


def values(x: Any) -> np.ndarray:
    """Return a tensor's values in its own dtype, contiguous; a number as an array without axes.

    Raises NotJudged for a tensor without values in memory: sparse, quantised, meta.
    """
    if not hasattr(x, "dtype") or isinstance(x, np.ndarray):
        return np.asarray(x)
    if str(x.layout) != "torch.strided" or x.is_quantized or x.device.type == "meta":
        raise NotJudged(f"a tensor that is {x.layout}, on {x.device}, {x.dtype}")
    x = x.detach().resolve_conj().resolve_neg()
    if str(x.dtype) in _SMALL_FLOATS:
        torch = importlib.import_module("torch")
        return array(x.contiguous().view(torch.uint8)).view(_SMALL_FLOATS[str(x.dtype)])
    if str(x.dtype) == "torch.complex32":
        raise NotJudged("complex32")
    return array(x)


def wide(x: Any) -> np.ndarray:
    """Return values in float64 or complex128; integers and booleans as they are."""
    y = values(x)
    if y.dtype.kind == "c":
        return y.astype(np.complex128)
    return y if y.dtype.kind in "iub" else y.astype(np.float64)


def parts(x: np.ndarray) -> np.ndarray:
    """Return real and imaginary parts along a last axis."""
    return np.stack([np.real(x), np.imag(x)], axis=-1)


def expected(call: Call, truth: np.ndarray, limit: Any = 0.0, spread: Any = None) -> Expected:
    """Return an expectation with this error before the output is rounded to its dtype.

    In float64 the truth rounds as much as the call.
    """
    y = call.outputs[0]
    if not hasattr(y, "dtype") or not (y.dtype.is_floating_point or y.dtype.is_complex):
        return Expected(truth)
    if y.dtype.is_complex:
        truth = parts(truth)
        limit = np.stack([np.broadcast_to(limit, truth.shape[:-1])] * 2, axis=-1)
    truth = np.asarray(truth, np.float64)
    run = call.run._replace(truth=truth)
    with np.errstate(over="ignore", invalid="ignore"):
        bound = run.rounded(Terms().add(limit, spread))
    if run.numerics.compute == "float64":
        bound = bound._replace(limit=2 * bound.limit, spread=2 * bound.spread)
    return Expected(truth, bound)


def question(call: Call, op: str, inputs: Mapping[str, Any], params: Mapping[str, Any], laid_out=lambda y: y):
    """Return a Question; inputs that are None are left out. Raises NotJudged for a dtype that no file stores."""
    try:
        tensors = {name: stored(np.asarray(x, order="C")) for name, x in inputs.items() if x is not None}
    except KeyError as error:
        raise NotJudged(f"inputs of dtype {error}") from None
    return Question(op, tensors, params, laid_out)


def _channels_last(x) -> bool:
    torch = importlib.import_module("torch")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    known = formats.get(x.ndim)
    return known is not None and not x.is_contiguous() and x.is_contiguous(memory_format=known)


def _products_in_float32(device: str) -> tuple[str | None, str | None]:
    """Return the types to which torch lets a device round the factors of float32 matmuls and convolutions."""
    torch = importlib.import_module("torch")
    products = _PRODUCTS[torch.get_float32_matmul_precision()]
    if device != "cuda":
        return products, products
    if products is None and torch.backends.cuda.matmul.allow_tf32:
        products = "tf32"
    return products, "tf32" if torch.backends.cudnn.allow_tf32 else None


def _sums_in_float16(op: str, args: Mapping[str, Any]) -> Mapping[str, Float16Sums]:
    """Return how torch lets a GPU add up float16 products: in float16 throughout, or once for each split of K."""
    torch = importlib.import_module("torch")
    matmul = torch.backends.cuda.matmul
    if getattr(matmul, "allow_fp16_accumulation", False):
        return {"linear": Float16Sums(step=16)}
    if matmul.allow_fp16_reduced_precision_reduction and op in ("mm", "addmm", "bmm", "baddbmm"):
        K = next(args[name] for name in ("mat2", "batch2") if name in args).shape[-2]
        return {"linear": Float16Sums(step=max(1, K // _SPLITS))}
    return {}
