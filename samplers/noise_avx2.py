"""Reproduce torch's normals on x86-64 to the last bit, with its float32 polynomials for log, sin and cos.

torch's build uses fused multiply-adds, which round once. Here they round through float64, which changes about one
result in 2^29.
"""

import numpy as np

_TWO_PI = np.float32(2 * np.pi)
_LOG = np.array(
    [
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    ],
    np.float32,
)
_SIN = np.array([-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1], np.float32)
_COS = np.array([2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2], np.float32)
# ln 2 and pi / 4, split so that integer multiples of the first part are exact.
_LN2 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_QUARTER = np.array([-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8], np.float32)


def _fma(a, b, c) -> np.ndarray:
    """Compute a b + c of float32 numbers in float64, rounded to float32."""
    return (np.asarray(a, np.float64) * b + c).astype(np.float32)


def _polynomial(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = _fma(y, x, c)
    return y


def log_cephes(x: np.ndarray) -> np.ndarray:
    """Compute ln x of positive normal float32 numbers, like Cephes' logf in its AVX2 form.

        x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2);  ln x = f + (f^3 P(f) + e ln2_low) - f^2 / 2 + e ln2_high

    Error: measured <= 1 ULP against float64.
    Source: Moshier, Cephes logf.c; PyTorch aten/src/ATen/native/cpu/avx_mathfun.h, log256_ps.
    """
    mantissa, e = np.frexp(x)
    small = mantissa < np.float32(0.707106781186547524)
    e = (e - small).astype(np.float32)
    f = np.where(small, (mantissa - np.float32(1)) + mantissa, mantissa - np.float32(1))
    square = f * f
    y = _fma(_polynomial(_LOG, f) * f, square, e * _LN2[1])
    return _fma(e, _LN2[0], f + _fma(square, np.float32(-0.5), y))


def sin_cos_cephes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute sin x and cos x, float32, 0 <= x <= 2 pi, by polynomials about the nearest even multiple of pi / 4.

    Error: measured <= 8e-8 against float64.
    Source: Moshier, Cephes sinf.c; PyTorch aten/src/ATen/native/cpu/avx_mathfun.h, sincos256_ps.
    """
    octant = ((x * np.float32(4 / np.pi)).astype(np.int32) + 1) & ~1
    for part in _QUARTER:
        x = _fma(octant.astype(np.float32), part, x)
    square = x * x
    c = np.float32(1) + _fma(_polynomial(_COS, square) * square, square, -(square * np.float32(0.5)))
    s = _fma(_polynomial(_SIN, square) * square, x, x)
    swapped = (octant & 2) != 0
    sine, cosine = np.where(swapped, c, s), np.where(swapped, s, c)
    return np.where(octant & 4, -sine, sine), np.where((octant - 2) & 4, cosine, -cosine)


def box_muller_avx2(d: np.ndarray) -> np.ndarray:
    """Turn uniforms in [0, 1) into normals in blocks of 16. d: [16 B] float32 -> [16 B] float32

    Source: PyTorch aten/src/ATen/native/cpu/DistributionTemplates.h, normal_fill_AVX2.
    """
    pairs = d.reshape(-1, 2, 8)
    radius = np.sqrt(np.float32(-2) * log_cephes(1 - pairs[:, 0]))
    sine, cosine = sin_cos_cephes(_TWO_PI * pairs[:, 1])
    return np.stack([radius * cosine, radius * sine], axis=1).reshape(-1)
