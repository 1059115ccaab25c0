"""A call as a short program of torch: seeded tensors, the call, and the number that should come out."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from refsd.engines.torch.engine import arrays
from refsd.watching.calls import Call

Params = Mapping[str, Any]
_HEAD = ("import torch", "import torch.nn.functional as F")
_MOST = 24  # numbers that are written out


class Tensor(NamedTuple):
    """A tensor of a program: its name, and the text that makes it."""

    name: str
    text: str


def seeded(name: str, seed: int, shape: Sequence[int], scale: float, dtype: str, layout: str = "") -> Tensor:
    """Draw from a normal distribution of this standard deviation."""
    sizes = "".join(f"{n}, " for n in shape)
    drawn = f"torch.randn({sizes}generator=torch.Generator().manual_seed({seed}))"
    if len(shape) == 0:
        drawn = f"torch.randn(1, generator=torch.Generator().manual_seed({seed}))[0]"
    scaled = drawn if scale == 1 else f"({scale:g} * {drawn})"
    cast = "" if dtype == "float32" else f".to(torch.{dtype})"
    return Tensor(name, f"{scaled}{cast}{layout}")


def written_out(name: str, x: torch.Tensor, layout: str = "") -> Tensor | None:
    """Write a small tensor as its numbers; None if it is too large."""
    if x.numel() > _MOST:
        return None
    return Tensor(name, f"torch.tensor({x.tolist()}, dtype={x.dtype}){layout}")


class Program(NamedTuple):
    """tensors: made first; call: the expression of the call; doubled: the same in float64, "" if there is none"""

    tensors: tuple[Tensor, ...]
    call: str
    doubled: str = ""

    def run(self) -> tuple[dict[str, Any], Any]:
        """Return the tensors by name and the call's result."""
        names: dict[str, Any] = {"torch": torch, "F": F}
        with torch.inference_mode(False), torch.no_grad():
            for tensor in self.tensors:
                names[tensor.name] = eval(tensor.text, names)
            return names, eval(self.call, names)

    def text(self, check: Sequence[str]) -> str:
        used_f = "F." in self.call
        lines = [*(_HEAD if used_f else _HEAD[:1]), "", *(f"{t.name} = {t.text}" for t in self.tensors)]
        return "\n".join([*lines, f"y = {self.call}", *check, ""])


def _convolution(function: str) -> Callable[[Params, set[str]], str]:
    def call(p: Params, inputs: set[str]) -> str:
        axes = len(p["padding"]) // 2
        sides = [tuple(p["padding"][2 * i : 2 * i + 2]) for i in range(axes)]
        even = all(a == b for a, b in sides)
        x = "x" if even else f"F.pad(x, {tuple(n for side in reversed(sides) for n in side)})"
        options = {"stride": p["stride"], "dilation": p["dilation"], "groups": p["groups"]}
        options["padding"] = tuple(a for a, _ in sides) if even else 0
        usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        said = "".join(f", {k}={_plain(v)}" for k, v in options.items() if not np.all(np.equal(v, usual[k])))
        return f"F.{function}({x}, weight, {_named(inputs, 'bias')}{said})"

    return call


def _plain(value: Any) -> Any:
    """Return one number where all are the same."""
    several = isinstance(value, (tuple, list))
    return value[0] if several and len(set(value)) == 1 else tuple(value) if several else value


def _named(inputs: set[str], name: str) -> str:
    return name if name in inputs else "None"


def _attention(p: Params, inputs: set[str]) -> str:
    heads = ", ".join(f"{name}.transpose(1, 2)" for name in "qkv")
    mask = ", attn_mask=mask" if "mask" in inputs else ""
    causal = ", is_causal=True" if p["causal"] else ""
    scale = "" if p["scale"] is None else f", scale={p['scale']}"
    return f"F.scaled_dot_product_attention({heads}{mask}{causal}{scale}).transpose(1, 2)"


def _norm(function: str, *names: str) -> Callable[[Params, set[str]], str]:
    def call(p: Params, inputs: set[str]) -> str:
        affine = "".join(f", {_named(inputs, name)}" for name in names)
        return f"F.{function}(x, x.shape[-1:]{affine}, eps={p['eps']})"

    return call


def _of(text: str) -> Callable[[Params, set[str]], str]:
    return lambda p, inputs: text


# Page of golden/operations -> the call of torch that computes it, in the page's layout.
CALLS: dict[str, Callable[[Params, set[str]], str]] = {
    "linear": lambda p, inputs: f"F.linear(x, weight, {_named(inputs, 'bias')})",
    "conv2d": _convolution("conv2d"),
    "conv3d": _convolution("conv3d"),
    "group_norm": lambda p, inputs: f"F.group_norm(x, {p['num_groups']}, weight, bias, {p['eps']})",
    "layer_norm": _norm("layer_norm", "weight", "bias"),
    "rms_norm": _norm("rms_norm", "weight"),
    "softmax": _of("torch.softmax(x, -1)"),
    "attention": _attention,
    "silu": _of("F.silu(x)"),
    "gelu": _of("F.gelu(x)"),
    "gelu_tanh": _of('F.gelu(x, approximate="tanh")'),
    "sigmoid": _of("torch.sigmoid(x)"),
    "tanh": _of("torch.tanh(x)"),
    "relu": _of("F.relu(x)"),
}


def of_page(op: str, tensors: Sequence[Tensor], params: Params) -> Program:
    """Return the program of a case of golden/operations."""
    call = CALLS[op](params, {t.name for t in tensors})
    doubled = call
    for tensor in tensors:
        doubled = _in_double(doubled, tensor.name)
    return Program(tuple(tensors), call, doubled)


def _in_double(text: str, name: str) -> str:
    """Replace a whole name by itself in float64."""
    return re.sub(rf"(?<![\w.=]){name}(?![\w(=])|(?<==){name}(?!\w)", f"{name}.double()", text)


def of_call(call: Call, drawn: bool) -> tuple[Program, dict[str, torch.Tensor]]:
    """Return the program of a call by its own operation, and the tensors that have to be read from a file.

    drawn: floating-point tensors are drawn anew, with their strides; else they are as they were
    """
    tensors: list[Tensor] = []
    from_file: dict[str, torch.Tensor] = {}

    def text_of(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            name = f"t{len(tensors)}"
            tensors.append(_tensor(name, value, drawn, len(tensors), from_file))
            return name
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(text_of, value))}]"
        return str(value) if isinstance(value, (torch.dtype, torch.layout)) else _literal(value)

    schema = call.schema
    positional = [text_of(call.args[a.name]) for a in schema.arguments if not a.kwarg_only]
    named = [
        f"{a.name}={text_of(call.args[a.name])}"
        for a in schema.arguments
        if a.kwarg_only and call.args[a.name] is not None
    ]
    return Program(tuple(tensors), f"torch.ops.{call.function}({', '.join([*positional, *named])})"), from_file


def _literal(value: Any) -> str:
    if isinstance(value, torch.device | torch.memory_format):
        return repr(value) if isinstance(value, torch.device) else str(value)
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _tensor(name: str, x: torch.Tensor, drawn: bool, seed: int, from_file: dict[str, torch.Tensor]) -> Tensor:
    dtype = str(x.dtype).removeprefix("torch.")
    layout = "" if x.is_contiguous() or not x.numel() else _strided(x)
    if drawn and x.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        return seeded(name, seed, x.shape, _spread(arrays(x)), dtype, layout)
    small = written_out(name, x, layout)
    if small is not None:
        return small
    from_file[name] = x
    return Tensor(name, f'torch.load("inputs.pt")["{name}"]')


def _strided(x: torch.Tensor) -> str:
    """Give a contiguous tensor the strides of x, if these are a permutation of its own; else leave it."""
    order = sorted(range(x.ndim), key=lambda d: (-x.stride(d), d))
    back = [order.index(d) for d in range(x.ndim)]
    return f".permute({order}).contiguous().permute({back})" if order != sorted(order) else ""


def _spread(x: np.ndarray) -> float:
    """Return the standard deviation to one digit; 1 where it is near."""
    size = float(np.nan_to_num(np.std(np.asarray(x, np.float64)), nan=1.0, posinf=1.0)) if x.size else 1.0
    return 1.0 if 0.5 <= size <= 2 or size == 0 else float(f"{size:.1g}")
