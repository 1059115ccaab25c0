"""Arithmetic with bugs that engines have had; a model's code runs on it unchanged."""

import math

import numpy as np

from refsd.numerics.arithmetic import Arithmetic


class OtherPairs(Arithmetic):
    rope, rope_halves = Arithmetic.rope_halves, Arithmetic.rope


class OtherAxes(Arithmetic):
    def rope_angles(self, ids, axes_dim, theta):
        return super().rope_angles(np.asarray(ids)[..., ::-1], axes_dim, theta)


class OtherTheta(Arithmetic):
    def rope_angles(self, ids, axes_dim, theta):
        return super().rope_angles(ids, axes_dim, 256.0 if theta == 10000 else 10000.0)


class SlightlyOtherTheta(Arithmetic):
    """theta 1 % too large."""

    def rope_angles(self, ids, axes_dim, theta):
        return super().rope_angles(ids, axes_dim, 1.01 * theta)


class NoHeadNorm(Arithmetic):
    def rms_norm(self, x, weight, eps=1e-6):
        return x if x.ndim == 4 else super().rms_norm(x, weight, eps)

    def rms_norm_apart(self, x, weight, eps=1e-6):
        return x if x.ndim == 4 else super().rms_norm_apart(x, weight, eps)


class NormBehindRope(Arithmetic):
    """Queries and keys are turned first; then their norms follow, each on the tokens of its stream."""

    def rms_norm(self, x, weight, eps=1e-6):
        if x.ndim != 4:
            return super().rms_norm(x, weight, eps)
        self._norms = [*getattr(self, "_norms", ()), (x, weight, eps)]
        return x

    def rope(self, x, angle):
        return self._normed(x, super().rope(x, angle))

    def rope_halves(self, x, angle):
        return self._normed(x, super().rope_halves(x, angle))

    def _normed(self, x, y):
        y, first, left = np.array(y), 0, getattr(self, "_norms", [])
        while first < x.shape[1]:
            same = (np.array_equal(own, x[:, first : first + own.shape[1]]) for own, *_ in left)
            at = next((i for i, equal in enumerate(same) if equal), None)
            if at is None:
                break
            own, weight, eps = left.pop(at)
            part = slice(first, first + own.shape[1])
            y[:, part] = super().rms_norm(y[:, part], weight, eps)
            first = part.stop
        return y


class RotatedValues(Arithmetic):
    """RoPE turns the values by the angles by which it turned the keys."""

    def rope(self, x, angle):
        self._turn = super().rope, angle
        return super().rope(x, angle)

    def rope_halves(self, x, angle):
        self._turn = super().rope_halves, angle
        return super().rope_halves(x, angle)

    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        turn, angle = getattr(self, "_turn", (None, None))
        if turn and angle is not None and v.shape[1] == angle.shape[1]:
            n = 2 * angle.shape[-1]
            v = np.concatenate([turn(v[..., :n], angle), v[..., n:]], axis=-1)
        return super().attention(q, k, v, scale, mask, diagonal, sinks)


class NormedIfWeighted(Arithmetic):
    """RMSNorm is left out where its weight is gone: NaN."""

    def rms_norm(self, x, weight, eps=1e-6):
        return x if weight is not None and np.isnan(weight).all() else super().rms_norm(x, weight, eps)

    def rms_norm_apart(self, x, weight, eps=1e-6):
        return x if np.isnan(weight).all() else super().rms_norm_apart(x, weight, eps)


class OtherGelu(Arithmetic):
    def gelu(self, x, approximate="none"):
        return super().gelu(x, "none" if approximate == "tanh" else "tanh")

    def geglu(self, x):
        value, gate = np.split(x, 2, axis=-1)
        return self._round(value * self.gelu(gate))


class QuickGelu(Arithmetic):
    def gelu(self, x, approximate="none"):
        return super().quick_gelu(x)

    def quick_gelu(self, x):
        return super().gelu(x)

    geglu = OtherGelu.geglu


class GeluForSilu(Arithmetic):
    def silu(self, x):
        return super().gelu(x)

    def group_norm_silu(self, x, weight, bias, num_groups=32, eps=1e-5):
        return self.silu(self.group_norm(x, weight, bias, num_groups, eps))

    def swiglu(self, x, second_gates=False):
        first, second = np.split(x, 2, axis=-1)
        return self._round(first * self.silu(second) if second_gates else self.silu(first) * second)


class LargeEps(Arithmetic):
    def parameter(self, op, name, value):
        return 10 * value if name == "eps" else super().parameter(op, name, value)


class SmallEps(Arithmetic):
    def parameter(self, op, name, value):
        return value / 10 if name == "eps" else super().parameter(op, name, value)


class SinesFirst(Arithmetic):
    def timestep_embedding(self, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
        return super().timestep_embedding(t, dim, max_period, freq_shift, scale, not sin_first)


class ShiftedFrequencies(Arithmetic):
    def timestep_embedding(self, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
        return super().timestep_embedding(t, dim, max_period, 1.0 - freq_shift, scale, sin_first)


class OtherScale(Arithmetic):
    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        usual = scale is None or math.isclose(scale, q.shape[-1] ** -0.5)
        return super().attention(q, k, v, 1.0 if usual else None, mask, diagonal, sinks)


class ScaleWithoutRoot(Arithmetic):
    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        return super().attention(q, k, v, 1 / q.shape[-1], mask, diagonal, sinks)


class NoMask(Arithmetic):
    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        return super().attention(q, k, v, scale, None, None, sinks)


class HeadsInTurn(Arithmetic):
    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        turn = np.arange(q.shape[2]) % k.shape[2]
        return super().attention(q, k[:, :, turn], v[:, :, turn], scale, mask, diagonal, sinks)


class PadsBothSides(Arithmetic):
    def conv2d(self, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
        padding = (1, 1, 1, 1) if tuple(padding) == (0, 1, 0, 1) else padding
        return super().conv2d(x, weight, bias, stride, padding, dilation, groups)


class PadsTheOtherSide(Arithmetic):
    def conv2d(self, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
        top, bottom, left, right = padding
        return super().conv2d(x, weight, bias, stride, (bottom, top, right, left), dilation, groups)


# Changes on which every tap's error is projected: operations that they may affect, and the wrong arithmetic.
_NORMS = {"group_norm", "group_norm_silu", "layer_norm", "adaptive_layer_norm", "rms_norm"}
PROJECTED: dict[str, tuple[set[str], type[Arithmetic]]] = {
    "eps ten times too large": (_NORMS, LargeEps),
    "GELU is the other one (erf, tanh)": ({"gelu", "geglu"}, OtherGelu),
    "RoPE's theta 1 % too large": ({"rope"}, SlightlyOtherTheta),
}
