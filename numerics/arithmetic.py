"""Compute the operations of every model under one Numerics.

Arrays between operations are in the storage dtype. Each operation widens its inputs to the compute dtype, calls a
kernel and rounds the result. If storage is narrower than compute, an operation that torch composes of several, like
x * (1 + scale) + shift, is rounded after each of them.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from refsd.kernels import activations as act
from refsd.kernels import modulate as modulation
from refsd.kernels import resample, rope, swiglu
from refsd.kernels import timestep_embedding as timesteps
from refsd.kernels.adapters.layer import Linear, as_it_is
from refsd.kernels.attention import attention, causal_mask
from refsd.kernels.attention_int8 import attention_int8, smoothed
from refsd.kernels.attention_online import attention_online
from refsd.kernels.attention_online_f16 import attention_online_f16
from refsd.kernels.conv2d import conv2d
from refsd.kernels.conv2d_fast import Choice, choose, conv2d_fast, prepare
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_packed import PackedFilters, conv2d_packed, pack_filters
from refsd.kernels.conv2d_winograd import Filters
from refsd.kernels.conv2d_winograd_f16 import applies, conv2d_winograd_f16
from refsd.kernels.conv3d import conv3d
from refsd.kernels.conv3d_frames import conv3d_frames
from refsd.kernels.convolution_geometry import each, positions
from refsd.kernels.embedding import embedding
from refsd.kernels.group_norm import group_norm
from refsd.kernels.group_norm_silu import group_norm_silu
from refsd.kernels.interpolate import resize_bilinear
from refsd.kernels.l2_norm import l2_norm
from refsd.kernels.layer_norm import layer_norm
from refsd.kernels.linear import linear
from refsd.kernels.linear_packed import Panels, linear_packed, pack
from refsd.kernels.linear_packed import applies as packs
from refsd.kernels.products_f16 import products_f16
from refsd.kernels.rms_norm import rms_norm
from refsd.kernels.rms_norm_channels import rms_norm_channels, rms_norm_channels_silu
from refsd.kernels.sigmoid import sigmoid
from refsd.kernels.softmax import softmax, softmax_sinks
from refsd.numerics.errors import BadInput
from refsd.numerics.one_pass_norms import group_norm_one_pass, layer_norm_one_pass
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.quantization import Quantization, quantize
from refsd.numerics.rounding import Rounding
from refsd.numerics.running_angles import ANGLES
from refsd.numerics.tensor import StoredTensor

_CONVOLUTIONS: dict[str, Callable[..., np.ndarray]] = {
    "im2col": conv2d_im2col,
    "direct": conv2d,
    "fast": conv2d_fast,
    "winograd-f16": conv2d_im2col,  # for layers to which Winograd does not apply
}
# From so many multiply-adds on, float64 goes by the microkernel, too: on every core, with bits that do not tell how
# many there are. BLAS takes the rest on one core; where few rows share a weight, packing it would cost more.
_LARGE, _ROWS = 1 << 31, 256
_SHRINKS = {"nearest": resample.resize_nearest, "bilinear": resize_bilinear}
_ATTENTIONS: dict[str, Callable[..., np.ndarray]] = {"three-pass": attention, "online": attention_online}


class Arithmetic(Rounding):
    """The operations of a model, with the rounding and the deviations of an engine.

    In all methods x, q, k, v are arrays in the storage dtype; weight and bias are arrays from `expand`.
    """

    def activation(self, weight_type: str) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that rounds a result before it enters a linear layer with a weight of this type."""
        through = self.numerics.input_of(weight_type)
        if through is None and self._fuses:
            return as_it_is
        return lambda x: self.round_as(self.settled(x), through)

    def adapted(self, weight, bias, weight_type: str) -> Linear:
        """Return the linear layer that an adapter modifies, with this arithmetic's roundings and sums."""
        matmul = self.matmul("linear", self.numerics.input_of(weight_type))
        return Linear(weight, bias, self.activation(weight_type), self.settled, matmul)

    def matmul(self, op: str, input_type: str | Quantization | None = None) -> Callable[..., np.ndarray]:
        """Return np.matmul, or a product with an operation's own sums. op: as in Numerics.sums"""
        sums = self.numerics.sums_of(op, input_type)
        return np.matmul if sums is None else partial(products_f16, step=sums.step, run=sums.run)

    def linear(self, x, weight, bias=None, weight_type: str = "f32"):
        """x [..., K], weight [O, K], bias [O] -> [..., O]

        weight: from `expand`, or from `panels`
        """
        if isinstance(weight, Panels):
            return self._round(linear_packed(self._widen(x), weight, bias))
        through = self.numerics.input_of(weight_type)
        x, weight = self.round_as(self._widen(x), through), self.round_as(weight, self.numerics.products)
        if self._large(math.prod(x.shape[:-1]), weight.size) and packs(x.shape, weight.shape, weight.dtype):
            return self._round(linear_packed(x, pack(weight), bias))
        return self._round(linear(x, weight, bias, self.matmul("linear", through)))

    def _large(self, rows: int, weights: int) -> bool:
        """True if a product of float64 goes by the microkernel: so many rows share so many weights."""
        return rows >= _ROWS and rows * weights >= _LARGE and self.numerics == FLOAT64

    def linear_quantized(self, x, weight, scale, bias, how: Quantization, static=None, zero=None):
        """x [..., K], weight [O, K], scale [O] or [1], bias [O] or None -> [..., O]: both factors in few bits

        Products of integers add up exactly; others in `compute`. The sum is multiplied by both scales' product.

        weight: numbers of few bits; scale: theirs; both in the compute dtype. static, zero: see quantize
        """
        q = quantize(self._widen(x), how, self.settled, static, zero)
        wide = np.float64 if how.integers else weight.dtype
        sums = np.matmul(q.values.astype(wide), weight.astype(wide).T).astype(weight.dtype)
        y = self._round(sums * (q.scale * scale))
        return y if bias is None else self._round(self._widen(y) + bias)

    def packs(self, x_shape, weight_shape) -> bool:
        """True if a linear layer multiplies by packed weights where they can be cached."""
        wanted = self.numerics.packed or self._large(math.prod(x_shape[:-1]), math.prod(weight_shape))
        return wanted and packs(x_shape, weight_shape, self.numerics.compute_dtype)

    def panels(self, weight: StoredTensor) -> Panels:
        """Pack a linear layer's weight, to be cached."""
        return pack(self.expand(weight))

    def conv2d(self, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
        """x [N, C, H, W], weight [K, C/groups, R, S], bias [K], padding (top, bottom, left, right) -> [N, K, P, Q]

        weight: from `expand`, or from `filters`; stride, dilation: a number, or (down, across)
        """
        n = self.numerics
        if isinstance(weight, (Filters, PackedFilters)):
            return self._round(conv2d_fast(self._widen(x), weight, bias, stride, padding))
        if n.convolution == "winograd-f16" and applies(weight.shape, stride, padding, dilation, groups):
            return self._round(conv2d_winograd_f16(self._widen(x), self.round_as(weight, n.conv), bias, padding))
        x, weight = self.round_as(self._widen(x), n.conv), self.round_as(weight, n.conv)
        return self._round(self._convolve(x, weight, bias, stride, padding, dilation, groups))

    def _convolve(self, x, weight, bias, stride, padding, dilation, groups) -> np.ndarray:
        if "conv" in self.numerics.sums:
            matmul = self.matmul("conv")
            return conv2d_im2col(x, weight, bias, stride, padding, dilation, groups, matmul)
        if groups == 1 and self._packs_filters(x.shape, weight.shape, stride, padding, dilation):
            return conv2d_packed(x, pack_filters(weight), bias, stride, padding, dilation)
        return _CONVOLUTIONS[self.numerics.convolution](x, weight, bias, stride, padding, dilation, groups)

    def _packs_filters(self, x_shape, weight_shape, stride, padding, dilation=1) -> bool:
        places = positions(x_shape[2:], padding, weight_shape[2:], each(stride, 2), each(dilation, 2))
        return self._large(x_shape[0] * math.prod(places), math.prod(weight_shape))

    def choose(self, x_shape, weight_shape, stride=1, padding=(0, 0, 0, 0)) -> Choice:
        """Return the algorithm that conv2d uses if transformed filters can be cached."""
        if self.numerics.convolution == "fast":
            return choose(x_shape, weight_shape, stride, padding)
        if x_shape[1] == weight_shape[1] and self._packs_filters(x_shape, weight_shape, stride, padding):
            return Choice("packed", "large")
        return Choice(self.numerics.convolution, f"as {self.numerics.name} has it")

    def filters(self, weight: StoredTensor, choice: Choice) -> np.ndarray | Filters | PackedFilters:
        """Transform or pack a weight for the algorithm `choice`, to be cached."""
        return prepare(self.expand(weight), choice)

    def conv3d(self, x, weight, bias, stride: int | tuple[int, ...] = 1, padding=(0,) * 6, dilation=1, groups=1):
        """x [N, C, D, H, W], weight [K, C/groups, T, R, S], bias [K] -> [N, K, F, P, Q]

        padding: (front, back, top, bottom, left, right); stride, dilation: a number, or (frames, down, across)
        """
        n = self.numerics
        x, weight = self.round_as(self._widen(x), n.conv), self.round_as(weight, n.conv)
        if n.convolution == "direct":
            return self._round(conv3d(x, weight, bias, stride, padding, dilation, groups))
        return self._round(conv3d_frames(x, weight, bias, stride, padding, dilation, groups, self._convolve))

    def group_norm(self, x, weight, bias, num_groups=32, eps=1e-5):
        """x [N, C, H, W], weight and bias [C] -> [N, C, H, W]"""
        eps = self.parameter("group_norm", "eps", eps)
        normalise = group_norm_one_pass if "group_norm" in self.numerics.one_pass else group_norm
        return self._round(normalise(self._widen(x), weight, bias, num_groups, eps))

    def group_norm_silu(self, x, weight, bias, num_groups=32, eps=1e-5):
        """x [N, C, H, W], weight and bias [C] -> [N, C, H, W]"""
        if not self._fuses or self.numerics.logistic or "group_norm" in self.numerics.one_pass:
            return self.silu(self.group_norm(x, weight, bias, num_groups, eps))
        eps = self.parameter("group_norm", "eps", eps)
        return group_norm_silu(self._widen(x), weight, bias, num_groups, eps)

    def layer_norm(self, x, weight=None, bias=None, eps=1e-5):
        """x [..., D], weight and bias [D] or None (1 and 0) -> [..., D]"""
        eps = self.parameter("layer_norm", "eps", eps)
        D = x.shape[-1]
        weight = np.ones(D, self.numerics.compute_dtype) if weight is None else weight
        bias = np.zeros(D, self.numerics.compute_dtype) if bias is None else bias
        normalise = layer_norm_one_pass if "layer_norm" in self.numerics.one_pass else layer_norm
        return self._round(normalise(self._widen(x).reshape(-1, D), weight, bias, eps).reshape(x.shape))

    def adaptive_layer_norm(self, x, shift, scale, eps=1e-6):
        """x [N, L, D], shift and scale [N, D] -> [N, L, D]: layer_norm, then modulate"""
        if not self._fuses or "layer_norm" in self.numerics.one_pass:
            return self.modulate(self.layer_norm(x, eps=eps), shift, scale)
        eps = self.parameter("layer_norm", "eps", eps)
        x, shift, scale = (self._widen(t) for t in (x, shift, scale))
        return modulation.adaptive_layer_norm(x, shift, scale, eps)

    def rms_norm(self, x, weight, eps=1e-6):
        """x [..., D], weight [D] or None (1) -> [..., D]; x [N, L, H, D] normalises each head"""
        eps = self.parameter("rms_norm of heads" if x.ndim == 4 else "rms_norm", "eps", eps)
        return self._round(rms_norm(self._widen(x).reshape(-1, x.shape[-1]), weight, eps).reshape(x.shape))

    def rms_norm_apart(self, x, weight, eps=1e-6):
        """rms_norm that rounds before multiplying by the weight, as the classes of transformers do"""
        if self._fuses:
            return self.rms_norm(x, weight, eps)
        return self.multiply(self.rms_norm(x, None, eps), weight)

    def rms_norm_channels(self, x, weight, eps=1e-12):
        """x [N, C, ...], weight [C] -> the same: each pixel's channels scaled to unit mean square"""
        if self._fuses:
            return rms_norm_channels(self._widen(x), weight, eps)
        unit = np.moveaxis(self.l2_norm(np.moveaxis(x, 1, -1), eps), -1, 1)
        return self.multiply(self.multiply(unit, math.sqrt(len(weight))), weight.reshape(-1, *[1] * (x.ndim - 2)))

    def rms_norm_channels_silu(self, x, weight, eps=1e-12):
        """rms_norm_channels, then SiLU"""
        if self._fuses and not self.numerics.logistic:
            return rms_norm_channels_silu(self._widen(x), weight, eps)
        return self.silu(self.rms_norm_channels(x, weight, eps))

    def l2_norm(self, x, eps=1e-12):
        """x [..., D] -> [..., D]: x / max(|x|, eps), with |x| over the last axis"""
        if self._fuses:
            return l2_norm(self._widen(x).reshape(-1, x.shape[-1]), eps).reshape(x.shape)
        length = self._round(np.linalg.norm(self._widen(x), axis=-1, keepdims=True))
        return self.apply(np.divide, x, self.apply(np.maximum, length, eps))

    def sigmoid(self, x):
        return self.apply(sigmoid, x)

    def silu(self, x):
        return self.multiply(x, self.sigmoid(x)) if self.numerics.logistic else self.apply(act.silu, x)

    def gelu(self, x, approximate="none"):
        """approximate: "none" (erf) or "tanh" """
        approximate = self.parameter("gelu", "approximate", approximate)
        return self._gelu({"none": act.gelu, "tanh": act.gelu_tanh}[approximate], x)

    def quick_gelu(self, x):
        if self.numerics.gelu is not None or (self._fuses and not self.numerics.logistic):
            return self._gelu(act.quick_gelu, x)
        return self.multiply(x, self.sigmoid(self.multiply(1.702, x)))

    def _gelu(self, function, x):
        y = function(self.round_as(self._widen(x), self.numerics.gelu))
        return self._round(self.round_as(y, self.numerics.gelu))

    def geglu(self, x):
        """x [..., 2D] -> [..., D]: the first half times the GELU of the second"""
        n = self.numerics
        erf = self.parameter("gelu", "approximate", "none") == "none"
        if n.storage != n.compute or n.gelu is not None or not erf:
            value, gate = np.split(x, 2, axis=-1)
            return self.multiply(value, self.gelu(gate))
        return act.geglu(self._widen(x).reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)

    def swiglu(self, x, second_gates=False):
        """x [..., 2D] -> [..., D]: SiLU(first half) * second half; second_gates: first half * SiLU(second half)"""
        if self._fuses and not self.numerics.logistic:
            gate = swiglu.swiglu_second_gates if second_gates else swiglu.swiglu
            return gate(self._widen(x).reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)
        first, second = np.split(x, 2, axis=-1)
        value, gate = (first, second) if second_gates else (second, first)
        return self.multiply(value, self.silu(gate))

    def swiglu_oai(self, gate, value, alpha, limit):
        """gate, value [..., D] -> [..., D]: gpt-oss's SwiGLU, see kernels/swiglu.py"""
        if self._fuses and not self.numerics.logistic:
            return swiglu.swiglu_oai(self._widen(gate), self._widen(value), alpha, limit)
        gate, value = self.apply(np.minimum, gate, limit), self.apply(np.clip, value, -limit, limit)
        gate = self.multiply(gate, self.sigmoid(self.multiply(alpha, gate)))
        return self.multiply(gate, self.add(value, 1))

    def softmax(self, x, scale=1.0, mask=None, sinks=None):
        """x [..., L], mask broadcast to x, sinks [H] if x is [B, H, L, J] -> [..., L]: softmax(scale x + mask)"""
        x = self.multiply(x, scale)
        if mask is not None:
            x = self.add(x, mask)
        rows = self._widen(x).reshape(-1, x.shape[-1])
        if sinks is None:
            return self._round(softmax(rows).reshape(x.shape))
        each = np.broadcast_to(self._widen(sinks)[:, None], x.shape[:-1]).ravel()
        return self._round(softmax_sinks(rows, each).reshape(x.shape))

    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        """q [B, L, H, D], k [B, J, G, D], v [B, J, G, E] -> [B, L, H, E]; see kernels/attention.py.

        scale: None is 1/sqrt(D)

        Raises BadInput if G does not divide H.
        """
        if not k.shape[2] or q.shape[2] % k.shape[2]:
            raise BadInput(
                f"attention: {q.shape[2]} heads of queries over {k.shape[2]} of keys: expected a divisor"
            )
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        numerics = self.numerics.attending(q.shape[-1], mask is None and diagonal is None and sinks is None)
        if numerics.scores is not None:
            if numerics.scores.smooth:
                k = self.apply(smoothed, k)
            blocks = numerics.scores.query_block, numerics.scores.key_block
            q, k, v = self._widen(q), self._widen(k), self.round_as(self._widen(v), "f16")
            return self._round(attention_int8(q, k, v, scale, *blocks, False, self.matmul("attention")))
        if numerics.flash is None:
            online = self._large(math.prod(q.shape[:-1]), k.shape[1] * k.shape[3])
            attend = attention_online if online else _ATTENTIONS[numerics.attention]
            if "attention" in numerics.sums:
                attend = partial(attention, matmul=self.matmul("attention"))
            q, k, v = (self.round_as(self._widen(t), numerics.products) for t in (q, k, v))
            return self._round(attend(q, k, v, scale, mask, diagonal, sinks))
        mask = np.zeros(1) if mask is None else np.asarray(mask)
        if diagonal is not None:
            mask = mask + causal_mask(q.shape[1], np.float32, k.shape[1], diagonal)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        q, k, v, mask = (self.round_as(np.ascontiguousarray(t, np.float32), "f16") for t in (q, k, v, mask))
        sinks = np.full(q.shape[2], -np.inf, np.float32) if sinks is None else np.array(sinks, np.float32)
        if numerics.flash_sum == "f16":
            return self._round(attention_online_f16(q, k, v, scale, mask, sinks))
        return self._round(attention(q, k, v, scale, mask, None, sinks))

    def timestep_embedding(self, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
        """t [N] -> [N, dim]"""
        embed = timesteps.timestep_embedding_sin_first if sin_first else timesteps.timestep_embedding
        return self._round(embed(self._widen(t), dim, max_period, freq_shift, scale))

    def upsample_nearest(self, x, factor=2):
        return resample.upsample_nearest(x, factor)

    def halve(self, x):
        """x [N, C, H, W], H and W even -> [N, C, H/2, W/2]: every other pixel"""
        method = self.parameter("halve", "method", "nearest")
        return self._round(_SHRINKS[method](self._widen(x), x.shape[2] // 2, x.shape[3] // 2))

    def text_projection(self, x, weight, kind):
        """Linear without a bias. x [N, K], weight [O, K] -> [N, O]"""
        if weight.shape[0] == weight.shape[1] and self.parameter("text_projection", "transposed", False):
            weight = np.ascontiguousarray(weight.T)
        return self.linear(x, weight, None, kind)

    def embedding(self, ids, weight):
        """ids [...], weight [V, D] -> [..., D]"""
        return self._round(embedding(ids, weight))

    def add(self, x, y):
        """Add x and y, broadcast against each other."""
        return self._round(np.add(x, y, dtype=self.numerics.compute_dtype))

    def multiply(self, x, y):
        """Multiply x and y, broadcast against each other."""
        return self._round(np.multiply(x, y, dtype=self.numerics.compute_dtype))

    def modulate(self, x, shift, scale):
        """x [N, L, D], shift and scale [N, D] -> [N, L, D]: x * (1 + scale) + shift"""
        if self._fuses:
            return modulation.modulate(self._widen(x), self._widen(shift), self._widen(scale))
        return self.add(self.multiply(x, self.add(1, scale)[:, None]), shift[:, None])

    def gated_add(self, x, h, gate):
        """x and h [N, L, D], gate [N, D] -> [N, L, D]: x + gate * h"""
        if self._fuses:
            return modulation.gated_add(self._widen(x), self._widen(h), self._widen(gate))
        return self.add(x, self.multiply(gate[:, None], h))

    def rope_angles(self, ids, axes_dim, theta):
        """ids [N, L, A] -> radians [N, L, sum(axes_dim) / 2], always float64"""
        return ANGLES[self.parameter("rope_angles", "precision", "float64")](ids, axes_dim, theta)

    def rope(self, x, angle):
        """x [N, L, H, D], angle [N, L, D/2] in radians -> [N, L, H, D]: rotate channels 2i and 2i + 1"""
        return self._round(rope.apply_rope(self._widen(x), angle))

    def rope_halves(self, x, angle):
        """x [N, L, H, D], angle [N, L, D/2] in radians -> [N, L, H, D]: rotate channels i and D/2 + i"""
        return self._round(rope.apply_rope_halves(self._widen(x), angle))
