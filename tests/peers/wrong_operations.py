"""Wrong operations of torch, put under a program by a dispatch mode, and what should be said of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode


class Bug(NamedTuple):
    """program: of PROGRAMS or tiny_modules; op: the wrong operation; words: of its name; "": none is expected

    change: (func, args, kwargs, right answer) -> the wrong answer
    """

    program: str
    op: str
    words: str
    change: Callable[..., Any]
    dtype: torch.dtype = torch.float32


class Wrong(TorchDispatchMode):
    """Give a bug's answers. first: the first wrong one, None before"""

    def __init__(self, bug: Bug):
        super().__init__()
        self._bug, self.first = bug, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        y = func(*args, **kwargs)
        if func._schema.name != f"aten::{self._bug.op}":
            return y
        wrong = self._bug.change(func, args, kwargs, y)
        if wrong is None:
            return y
        if self.first is None:
            self.first = (wrong[0] if isinstance(wrong, tuple) else wrong).clone()
        return wrong


def other(**changed) -> Callable[..., Any]:
    """Call with other arguments: position -> function of the argument."""
    by_position = {int(k[1:]): function for k, function in changed.items()}

    def change(func, args, kwargs, y):
        args = [by_position[i](x) if i in by_position else x for i, x in enumerate(args)]
        return func(*args, **kwargs)

    return change


def answer(function) -> Callable[..., Any]:
    """Answer a function of the arguments."""
    return lambda func, args, kwargs, y: function(*args)


def after(function) -> Callable[..., Any]:
    """Change the right answer, or the first of several."""

    def change(func, args, kwargs, y):
        return (function(y[0]), *y[1:]) if isinstance(y, tuple) else function(y)

    return change


def _padded(mode):
    def change(func, args, kwargs, y):
        x, weight, bias, stride, padding, *rest = args
        if not any(padding):
            return None
        sides = [p for p in reversed(padding) for _ in (0, 1)]
        return func(F.pad(x, sides, mode), weight, bias, stride, [0] * len(padding), *rest)

    return change


def _padded_at_the_end(func, args, kwargs, y):
    x, weight, bias, stride, padding, *rest = args
    if not any(padding):
        return None
    sides = [p for q in reversed(padding) for p in (0, 2 * q)]
    return func(F.pad(x, sides), weight, bias, stride, [0] * len(padding), *rest)


def _garbage(func, args, kwargs, y):
    """Leave the last row and column unwritten where the stride is 2."""
    if list(args[3]) != [2, 2]:
        return None
    y = y.clone()
    y[:, :, -1, -1] = 1e30 * torch.linspace(1, 9, y[:, :, -1, -1].numel()).reshape(y.shape[:2])
    return y


def as_on_amx(func, args, kwargs, y):
    """What torch 2.13 does on CPUs with AMX: docs/findings/torch-amx-bf16-convolution.md."""
    x, weight, _, stride, padding = args[:5]
    narrow = x.shape[-1] == 4 and x.shape[-2] in (13, 17) and weight.shape[2:] == (3, 3)
    if not narrow or list(stride) != [2, 2] or any(padding) or x.dtype != torch.bfloat16:
        return None
    y = y.clone()
    y[..., -2:, :] = 1e37
    return y


def _attended(**changes):
    def change(func, args, kwargs, y):
        q, k, v = args[:3]
        scale, mask = q.shape[-1] ** -0.5, kwargs.get("attn_mask")
        given = {"q": q, "k": k, "v": v, "scale": scale, "mask": mask}
        given |= {name: function(given) for name, function in changes.items()}
        scores = given["q"] @ given["k"].transpose(-1, -2) * given["scale"]
        scores = scores if given["mask"] is None else scores + given["mask"]
        return torch.softmax(scores, -1) @ given["v"], *y[1:]

    return change


def _layer_norm(func, args, kwargs, y):
    x, _, weight, bias, eps = args
    z = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    return (z if weight is None else z * weight + bias), *y[1:]


def _one_group_less_one(func, args, kwargs, y):
    x, weight, bias, N, _, _, groups, eps = args
    rows = x.reshape(N, groups, -1)
    z = (rows - rows.mean(-1, keepdim=True)) / torch.sqrt(rows.var(-1, keepdim=True) + eps)
    each = (1, -1) + (1,) * (x.ndim - 2)
    return z.reshape(x.shape) * weight.reshape(each) + bias.reshape(each), *y[1:]


def _truncated(func, args, kwargs, y):
    if y.dtype != torch.bfloat16 or args[0].dtype != torch.float32:
        return None
    bits = args[0].contiguous().view(torch.int32) & -65536
    return bits.view(torch.float32).to(torch.bfloat16)


def _without_max(x, dim, *rest):
    return torch.softmax(x.clamp(max=1.0), dim)


def _tail_lost(func, args, kwargs, y):
    x, weight = args
    kept = (x.shape[1] - 1) // 32 * 32
    return x[:, :kept] @ weight[:kept]


def _cubed(func, args, kwargs, y):
    return y * args[0] if isinstance(args[0], torch.Tensor) else None


def _no_view(func, args, kwargs, y):
    return args[0].reshape(y.shape) if args[0].ndim == 2 and y.shape != args[0].shape else None


def mixed():
    """A program of operations that the small models lack."""
    table, ids = torch.randn(11, 8), torch.tensor([[3, 1, 4], [1, 5, 9]])
    x = F.embedding(ids, table)
    scores = torch.softmax(torch.bmm(x, x.transpose(1, 2)).masked_fill(torch.eye(3).bool(), -5.0), dim=-1)
    x = torch.baddbmm(x, scores, x, beta=0.5, alpha=0.25)
    picture = F.pixel_shuffle(x.reshape(1, 12, 2, 2), 2)
    picture = torch.roll(picture, 1, -1).flip(-2).clamp(-0.1, 0.1)
    picture = F.pad(picture, (1, 0, 2, 1))
    best = picture.amax(-1).cumsum(-1).sum(-1)
    picture[:, torch.tensor([0, 2])] = 1.0
    picture = F.conv_transpose2d(picture, torch.randn(3, 5, 3, 3), stride=2, padding=1)
    wide = F.interpolate(picture, scale_factor=2, mode="bilinear")
    return torch.where(wide > 0, wide, wide.square()).mean() + best.sum().sigmoid() + torch.tril(scores).std()


def awkward(dtype=torch.bfloat16):
    """Numbers without axes, other axes than the last, sizes of 0 and 1, biases that cancel: all of them right."""
    x = torch.randn(5, 6, dtype=dtype)
    for dim in (0, 1):
        torch.softmax(x, dim), torch.log_softmax(x, dim)
    one = x[0, 0].clone()
    one.sum(), one.sigmoid(), one.item(), x[:1, 0].item(), torch.index_select(one, 0, torch.tensor([0]))
    x.unbind(0), x[0].unbind(0), torch.split(x, 4), torch.zeros(0, 3).sum(1), torch.cat([x, x[:0]])
    torch.addmm(x[:, 0], x[:, :0], x[:0, :5], beta=0.2, alpha=0.6)
    torch.addmm(one.reshape(1), x, x.t()), torch.rsqrt(x.abs() + 0.1), torch.round(x, decimals=2)
    torch.masked_select(x, torch.arange(6) > 2), torch.sort(x, 0, descending=True), x.std(0), x.amax(), x.max(0)
    picture, weight = torch.randn(2, 2, 4, 4, dtype=dtype), torch.randn(2, 2, 4, 5, dtype=dtype)
    how = {"stride": (3, 2), "padding": (1, 2), "output_padding": (2, 3), "dilation": 4}
    for seed in range(20):
        bias = 5 * torch.randn(4, generator=torch.Generator().manual_seed(seed)).to(dtype)
        F.conv_transpose2d(picture, weight, bias, groups=2, **how)
    (x + 0.1 < 0.3), x.double() * one, x.long() + 1, torch.where(x > 0, x, 0.1), x**2, 2 ** x.abs(), x - 0.3


SD15, FLUX, MIXED = "sd15", "flux", "mixed"
_ATTEND = "_scaled_dot_product_flash_attention_for_cpu"
CONV, GROUP, LAYER = "convolution", "native_group_norm", "native_layer_norm"

BUGS = {
    "conv: border repeated": Bug(SD15, CONV, "border repeated", _padded("replicate")),
    "conv: filter flipped": Bug(SD15, CONV, "filter flipped", other(_1=lambda w: w.flip(2, 3))),
    "conv: filter transposed": Bug(SD15, CONV, "filter transposed", other(_1=lambda w: w.transpose(2, 3))),
    "conv: no bias": Bug(SD15, CONV, "bias", other(_2=lambda b: None)),
    "conv: padding at the end": Bug(SD15, CONV, "padding at the end", _padded_at_the_end),
    "conv: input in float16": Bug(SD15, CONV, "float16", other(_0=lambda x: x.half().float())),
    "conv: garbage as on AMX": Bug(SD15, CONV, "memory that", _garbage, torch.bfloat16),
    "group norm: weight ignored": Bug(SD15, GROUP, "weight", other(_1=torch.ones_like)),
    "group norm: one group": Bug(SD15, GROUP, "one group", other(_6=lambda groups: 1)),
    "group norm: variance of n - 1": Bug(SD15, GROUP, "n - 1|unbiased|sample", _one_group_less_one),
    "layer norm: not centred": Bug(SD15, LAYER, "mean", _layer_norm),
    "layer norm: bias ignored": Bug(SD15, LAYER, "bias", other(_3=torch.zeros_like)),
    "attention: no scale": Bug(SD15, _ATTEND, "scale missing", _attended(scale=lambda a: 1.0)),
    "attention: scale 1/D": Bug(SD15, _ATTEND, "scale 1/D", _attended(scale=lambda a: a["scale"] ** 2)),
    "attention: last key": Bug(
        SD15, _ATTEND, "last 1 key", _attended(k=lambda a: a["k"][..., :-1, :], v=lambda a: a["v"][..., :-1, :])
    ),
    "attention: q in float16": Bug(SD15, _ATTEND, "float16", _attended(q=lambda a: a["q"].half().float())),
    "attention: NaN": Bug(
        SD15, _ATTEND, "NaN|not finite", after(lambda y: torch.where(y == y.max(), torch.nan, y))
    ),
    "gelu: tanh for erf": Bug(SD15, "gelu", "tanh", answer(lambda x: F.gelu(x, approximate="tanh"))),
    "gelu: quick": Bug(SD15, "gelu", "quick", answer(lambda x: x * torch.sigmoid(1.702 * x))),
    "silu: relu": Bug(SD15, "silu", "relu|ReLU", answer(F.relu)),
    "silu: quick": Bug(SD15, "silu", "1.702|quick", answer(lambda x: x * torch.sigmoid(1.702 * x))),
    "linear: no bias": Bug(SD15, "addmm", "bias", answer(lambda b, x, w: x @ w)),
    "linear: row of the input lost": Bug(SD15, "mm", "32|lost|left out|last", _tail_lost),
    "add: sub": Bug(SD15, "add", "sub in its place", answer(lambda a, b, **k: a - b)),
    "mul: a share too large": Bug(SD15, "mul", "", after(lambda y: 1.01 * y)),
    "cat: other order": Bug(SD15, "cat", "other order", other(_0=lambda parts: parts[::-1])),
    "exp: exp2": Bug(SD15, "exp", "exp2", answer(torch.exp2)),
    "sin: cos": Bug(SD15, "sin", "cos", answer(torch.cos)),
    "cast: truncated": Bug(SD15, "_to_copy", "cut off, not rounded", _truncated, torch.bfloat16),
    "upsample: shifted": Bug(SD15, "upsample_nearest2d", "before|pixel|shifted", after(lambda y: y.roll(1, -1))),
    "pow: cubed": Bug(
        FLUX, "pow", "", lambda f, args, k, y: y * args[0] if isinstance(args[0], torch.Tensor) else None
    ),
    "mean: of n - 1": Bug(
        FLUX, "mean", "1.06667", lambda func, args, kwargs, y: y * args[0].shape[-1] / (args[0].shape[-1] - 1)
    ),
    "rsqrt: sqrt": Bug(FLUX, "rsqrt", "sqrt|reciprocal", answer(torch.sqrt)),
    "neg: identity": Bug(FLUX, "neg", "returned as it is", answer(torch.clone)),
    "stack: other order": Bug(FLUX, "stack", "other order", other(_0=lambda parts: parts[::-1])),
    "cos: half the angle": Bug(FLUX, "cos", "", answer(lambda x: torch.cos(x / 2))),
    "layer norm: eps": Bug(FLUX, LAYER, "eps", other(_4=lambda eps: 1e-1)),
    "t: not transposed": Bug(FLUX, "t", "strides|shape", _no_view),
    "softmax: over columns": Bug(MIXED, "_softmax", "columns", answer(lambda x, dim, half: torch.softmax(x, -2))),
    "softmax: scores limited": Bug(MIXED, "_softmax", "", answer(_without_max)),
    "embedding: the next row": Bug(
        MIXED, "embedding", "one more", answer(lambda w, i, *more: F.embedding((i + 1) % 11, w))
    ),
    "masked_fill: mask inverted": Bug(MIXED, "masked_fill", "mask is inverted", other(_1=torch.logical_not)),
    "bmm: first item": Bug(MIXED, "bmm", "reads the first", other(_1=lambda y: y[:1].expand_as(y))),
    "baddbmm: beta ignored": Bug(MIXED, "baddbmm", "ignored", lambda f, a, k, y: f(*a, beta=0, alpha=0.25)),
    "pixel_shuffle: channels last": Bug(
        MIXED,
        "pixel_shuffle",
        "",
        answer(lambda x, r: x.reshape(1, 2, 2, 3, 2, 2).permute(0, 3, 4, 1, 5, 2).reshape(1, 3, 4, 4)),
    ),
    "roll: other direction": Bug(MIXED, "roll", "the other way", other(_1=lambda s: [-s[0]])),
    "flip: nothing": Bug(MIXED, "flip", "as it is", answer(lambda x, dims: x.clone())),
    "clamp: lower bound ignored": Bug(MIXED, "clamp", "min is ignored", other(_1=lambda low: None)),
    "pad: other side": Bug(MIXED, "constant_pad_nd", "other side", other(_1=lambda p: [p[1], p[0], p[3], p[2]])),
    "cumsum: without its own": Bug(MIXED, "cumsum", "", lambda func, args, kwargs, y: y - args[0]),
    "tril: diagonal lost": Bug(MIXED, "tril", "diagonal is -1", answer(lambda x, *d: torch.tril(x, -1))),
    "std: of n": Bug(MIXED, "std", "divides by n - 0", lambda func, args, kwargs, y: args[0].std(correction=0)),
    "bilinear: corners": Bug(MIXED, "upsample_bilinear2d", "corners", other(_2=lambda corners: True)),
    "transposed conv: filter not flipped": Bug(MIXED, CONV, "flipped", other(_1=lambda w: w.flip(2, 3))),
}
PROGRAMS = {MIXED: mixed}
