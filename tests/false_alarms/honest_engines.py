"""Engines in NumPy that compute what they declare, by the reference's algorithms or in another order."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from refsd.golden.case import Case
from refsd.judges.model import ModelJudge
from refsd.kernels.attention import causal_mask
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, GGML_CPU, TORCH_BF16, TORCH_F16, TORCH_F32, WINOGRAD_F16, Numerics
from refsd.numerics.tensor import StoredTensor


class HonestEngine:
    """An arithmetic as an engine with taps.

    name, arithmetic: of the engine
    declared:         the numerics that it declares
    kind:             runs the models
    operations:       True to give a tap of every operation; False: as hooks do, of layers with weights alone
    """

    def __init__(
        self, name: str, arithmetic: Arithmetic, declared: Numerics, kind: ModelJudge, operations: bool = True
    ):
        self.name = name if operations else f"{name}, layers"
        self._arithmetic, self._declared, self._kind, self._operations = arithmetic, declared, kind, operations

    def refuses(self, case: Case) -> str | None:
        return self._kind.refuses(case, self._declared)

    def numerics(self, case: Case) -> Numerics:
        return self._declared

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        taps = Taps(ops=True)
        outputs = self._kind.tapped(case, inputs, self._arithmetic, taps)
        if self._operations:
            return outputs, dict(taps)
        weights = self._kind.axes_of_weights(case, inputs)
        layers = {name.removesuffix(".weight") for name in weights}
        return outputs, {name: y for name, y in taps.items() if name in layers}


class Backwards(Arithmetic):
    """Adds up numbers in the opposite order: those of products, of attention's rows, and of norms.

    Norms accumulate in float32, one number after another; the reference's accumulate in float64.
    """

    def matmul(self, op: str, input_type: str | None = None) -> Callable[..., np.ndarray]:
        forwards = super().matmul(op, input_type)
        turned = np.ascontiguousarray
        return lambda a, b, out=None: forwards(turned(a[..., ::-1]), turned(b[..., ::-1, :]), out=out)

    @property
    def _convolve(self) -> Callable[..., np.ndarray]:
        return partial(conv2d_im2col, matmul=self.matmul("conv"))

    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        if diagonal is not None:
            hidden = causal_mask(q.shape[1], np.float32, k.shape[1], diagonal)
            mask, diagonal = hidden if mask is None else mask + hidden, None
        mask = None if mask is None else np.ascontiguousarray(np.asarray(mask)[..., ::-1])
        return super().attention(q, k[:, ::-1], v[:, ::-1], scale, mask, diagonal, sinks)

    def group_norm(self, x, weight, bias, num_groups=32, eps=1e-5):
        x = self._widen(x)
        y = _normalised(x.reshape(len(x), num_groups, -1), eps).reshape(x.shape)
        return self._round(y * weight[:, None, None] + bias[:, None, None])

    def group_norm_silu(self, x, weight, bias, num_groups=32, eps=1e-5):
        return self.silu(self.group_norm(x, weight, bias, num_groups, eps))

    def layer_norm(self, x, weight=None, bias=None, eps=1e-5):
        y = _normalised(self._widen(x), eps)
        return self._round(y if weight is None else y * weight + bias)

    def adaptive_layer_norm(self, x, shift, scale, eps=1e-6):
        return self.modulate(self.layer_norm(x, eps=eps), shift, scale)

    def rms_norm(self, x, weight, eps=1e-6):
        x = self._widen(x)
        y = x / np.sqrt(_total(x * x) / np.float32(x.shape[-1]) + np.float32(eps))
        return self._round(y if weight is None else y * weight)


def _total(x: np.ndarray) -> np.ndarray:
    """Sum the last axis from its end, one number after another. -> [..., 1], float32"""
    return np.cumsum(x[..., ::-1], axis=-1, dtype=np.float32)[..., -1:]


def _normalised(x: np.ndarray, eps: float) -> np.ndarray:
    n = np.float32(x.shape[-1])
    centred = x - _total(x) / n
    return centred / np.sqrt(_total(centred * centred) / n + np.float32(eps))


# Name, arithmetic, numerics, what is declared. "fast" convolves by Winograd, and attends without storing scores.
_ENGINES: tuple[tuple[str, type[Arithmetic], Numerics, Numerics], ...] = (
    ("refsd-float32", Arithmetic, FLOAT32, FLOAT32),
    ("refsd-fast", Arithmetic, FLOAT32, TORCH_F32),
    ("refsd-ggml-cpu", Arithmetic, GGML_CPU, GGML_CPU),
    ("refsd-winograd-f16", Arithmetic, WINOGRAD_F16, WINOGRAD_F16),
    ("backwards-float32", Backwards, TORCH_F32, TORCH_F32),
    ("backwards-ggml-cpu", Backwards, GGML_CPU, GGML_CPU),
    ("backwards-f16", Backwards, TORCH_F16, TORCH_F16),
    ("backwards-bf16", Backwards, TORCH_BF16, TORCH_BF16),
)


def engines(kind: ModelJudge) -> Iterator[HonestEngine]:
    for name, arithmetic, numerics, declared in _ENGINES:
        for operations in (True, False):
            yield HonestEngine(name, arithmetic(numerics), declared, kind, operations)
