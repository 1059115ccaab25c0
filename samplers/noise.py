"""The random number generators of diffusion engines, and how each engine turns uniforms into normals.

The integers are exact. The normals are rounded as in each engine, except that log, sin and cos are
computed in float64 and then rounded, so that they do not depend on a math library's last bit.

An object holds the state of one stream, so a call's result depends on the earlier calls.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from refsd.kernels.philox import philox4x32_10
from refsd.samplers.noise_avx2 import box_muller_avx2
from refsd.samplers.step import StepNoise

TWO_PI = np.float32(2 * np.pi)
_CELL = np.float32(2.3283064e-10)  # 2^-32


class Noise(Protocol):
    def randn(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw standard normals. -> [shape], float32, filled in C order"""
        ...


class OfBatch:
    """The noise of one picture of a batch whose pictures all draw from one stream.

    rng: draws for the whole batch, [pictures, ...]; number: which of its pictures to return
    """

    def __init__(self, rng: Noise, pictures: int, number: int):
        self._rng, self._pictures, self._number = rng, pictures, number

    def randn(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw for all pictures. shape: [1, ...] -> [shape], float32"""
        drawn = self._rng.randn((self._pictures, *shape[1:]))
        return drawn[self._number : self._number + 1]


def independent(rng: Noise, shape: tuple[int, ...]) -> StepNoise:
    """Return a noise source that draws fresh normals in every step, like k-diffusion's default noise sampler."""
    return lambda sigma, sigma_next: rng.randn(shape)


class Philox:
    """The normals of stable-diffusion.cpp's RNG `cuda`, which imitates torch on a GPU.

        g = philox4x32_10(counter = (call number, 0, element, 0), key = seed)
        u = g0 / 2^32 + 2^-33,  v = 2 pi (g1 / 2^32 + 2^-33)
        normal = sqrt(-2 ln u) sin v

    u, v and the square root are rounded to float32. Each call numbers its elements from 0.
    Error: bit-exact with stable-diffusion.cpp. PhiloxNv differs by 1.7e-7 RMS, and by up to 1e-5 if u is near 1.
    Source: stable-diffusion.cpp src/rng_philox.hpp.
    """

    def __init__(self, seed: int):
        self.key = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
        self.call = 0

    def _words(self, shape: tuple[int, ...]) -> np.ndarray:
        """Compute the next call's words. -> [n, 4] uint32"""
        counters = np.zeros((int(np.prod(shape)), 4), np.uint32)
        counters[:, 0] = self.call
        counters[:, 2] = np.arange(len(counters))
        self.call += 1
        return philox4x32_10(counters, self.key)

    def randn(self, shape: tuple[int, ...]) -> np.ndarray:
        g = self._words(shape).astype(np.float32)
        turn = _CELL * TWO_PI
        u = g[:, 0] * _CELL + _CELL / np.float32(2)
        v = g[:, 1] * turn + turn / np.float32(2)
        radius = np.sqrt(-2 * np.log(u, dtype=np.float64)).astype(np.float32)
        return (radius * np.sin(v, dtype=np.float64)).astype(np.float32).reshape(shape)


class PhiloxNv(Philox):
    """The normals of A1111's and Forge's random number source NV: Philox's stream in float64, rounded at the end.

    Error: bit-exact with A1111 for equal log and sin; with other ones the last bit of one normal in 10^8 differs.
    Source: A1111 modules/rng_philox.py.
    """

    def randn(self, shape: tuple[int, ...]) -> np.ndarray:
        g = self._words(shape).astype(np.float64)
        return _normals(g[:, 0], g[:, 1], False).reshape(shape)


class TorchCuda(PhiloxNv):
    """The normals of torch.randn on a GPU that runs `threads` threads at once; up to so many they are PhiloxNv's.

    Number i is the k-th of thread i mod T, k = i div T, where T is n in whole blocks of 256, at most `threads`:

        g = philox4x32_10(counter = (first + k div 4, 0, i mod T, 0), key = seed)
        u, v from g0, g1 for an even pair of k, from g2, g3 for an odd one;  normal = sqrt(-2 ln u) (sin v, cos v)

    A call advances `first` by one for each four numbers of a thread.
    Error: PhiloxNv's against a GPU, whose float32 functions round. The order is the source's, not measured on one.
    Source: PyTorch aten/src/ATen/native/cuda/DistributionTemplates.h, calc_execution_policy and
    distribution_elementwise_grid_stride_kernel; cuRAND's curand_normal4.
    """

    def __init__(self, seed: int, threads: int):
        super().__init__(seed)
        self.threads = threads

    def randn(self, shape: tuple[int, ...]) -> np.ndarray:
        n = int(np.prod(shape))
        threads = min(self.threads, -(-n // 256) * 256)
        k, thread = np.divmod(np.arange(n), max(threads, 1))
        counters = np.zeros((n, 4), np.uint32)
        counters[:, 0], counters[:, 2] = self.call + k // 4, thread
        self.call += -(-n // max(4 * threads, 1))
        g = philox4x32_10(counters, self.key).astype(np.float64)
        pair = 2 * (k % 4 // 2)
        of_u, of_v = g[np.arange(n), pair], g[np.arange(n), pair + 1]
        return _normals(of_u, of_v, k % 2 == 1).reshape(shape)


def _normals(of_u: np.ndarray, of_v: np.ndarray, cosine: np.ndarray | bool) -> np.ndarray:
    """Turn words into normals as PhiloxNv does. cosine: where the second of a pair is asked for"""
    # Both factors, and their halves, were rounded to float32.
    turn = np.float32(2.3283064e-10 * 6.2831855)
    u, v = of_u * float(_CELL) + float(_CELL / 2), of_v * float(turn) + float(turn / 2)
    return (np.sqrt(-2.0 * np.log(u)) * np.where(cosine, np.cos(v), np.sin(v))).astype(np.float32)


class Mersenne:
    """The Mersenne Twister mt19937, seeded by one 32-bit word: a stream of uint32.

    Source: Matsumoto & Nishimura 1998; seeding of 2002 (init_genrand).
    """

    def __init__(self, seed: int):
        self._words = np.random.RandomState(seed & 0xFFFFFFFF)

    def draw(self, n: int) -> np.ndarray:
        """Draw the next n words. -> [n] uint32"""
        return np.frombuffer(self._words.bytes(4 * n) if n else b"", "<u4")  # even bytes(0) would consume a word


class TorchCpu:
    """The normals of stable-diffusion.cpp's RNG `cpu`: torch.randn's stream on a CPU; log, sin, cos rounded once.

    16 or more elements are computed in blocks of 16 uniforms d of 24 bits (float64: of 53), for j in 0..7:

        r = sqrt(-2 ln(1 - d_j)),  theta = 2 pi d_{j+8};  y_j = r cos theta,  y_{j+8} = r sin theta

    with each operation rounded to the dtype. If the last block is not full, the last 16 elements are drawn
    again. Fewer than 16 elements are computed one by one from 53-bit uniforms in float64; the sine half is
    kept for the next element or call.

    float16 and bfloat16 are rounded float32 normals, except that a last block that is not full consumes no
    uniforms before it is drawn again.

    Error: bit-exact with torch for fewer than 16 elements; for more, <= 2 ULP against stable-diffusion.cpp
    (glibc's float functions), and in float64 against torch 2.13. torch's float32 bits differ: see TorchAvx2,
    TorchScalar.
    Source: PyTorch aten/src/ATen/native/cpu/DistributionTemplates.h, normal_fill;
    aten/src/ATen/core/DistributionsHelper.h, normal_distribution; stable-diffusion.cpp src/rng_mt19937.hpp.
    """

    def __init__(self, seed: int):
        self.engine = Mersenne(seed)
        self.kept: float | None = None

    def _uniform24(self, n: int) -> np.ndarray:
        return (self.engine.draw(n) & np.uint32(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)

    def _uniforms53(self, n: int) -> np.ndarray:
        words = self.engine.draw(2 * n).astype(np.uint64)
        return ((words[::2] << np.uint64(32) | words[1::2]) & np.uint64(2**53 - 1)) * 2.0**-53

    def _uniform53(self) -> float:
        high, low = (int(word) for word in self.engine.draw(2))
        return ((high << 32 | low) & (2**53 - 1)) * 2.0**-53

    def _one(self) -> float:
        if self.kept is not None:
            y, self.kept = self.kept, None
            return y
        u1, u2 = self._uniform53(), self._uniform53()
        r, theta = math.sqrt(-2.0 * math.log1p(-u2)), 2.0 * math.pi * u1
        self.kept = r * math.sin(theta)
        return r * math.cos(theta)

    def randn(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
        """Draw normals. dtype: float32, float64, float16 or bfloat16; it changes the stream, too."""
        n, dtype = int(np.prod(shape)), np.dtype(dtype)
        double = dtype == np.float64
        if n < 16:
            y = np.array([self._one() for _ in range(n)], np.float64 if double else np.float32)
            return y.astype(dtype).reshape(shape)
        uniform, transform = (
            (self._uniforms53, _box_muller_16_f64) if double else (self._uniform24, self._box_muller)
        )
        whole = n // 16 * 16
        d = uniform(n if dtype.itemsize > 2 else whole)
        y = np.empty(n, np.float64 if double else np.float32)
        y[:whole] = transform(d[:whole])
        if n % 16:
            y[-16:] = transform(uniform(16))
        return y.astype(dtype, copy=False).reshape(shape)

    def _box_muller(self, d: np.ndarray) -> np.ndarray:
        return _box_muller_16(d)


def _box_muller_16(d: np.ndarray, theta: np.ndarray | None = None) -> np.ndarray:
    """Turn uniforms in [0, 1) into normals in blocks of 16. d: [16 B] float32; theta: [B, 8] float32 -> [16 B]"""
    u1, u2 = 1 - d.reshape(-1, 2, 8)[:, 0], d.reshape(-1, 2, 8)[:, 1]
    log = np.log(u1, dtype=np.float64).astype(np.float32)
    angle = (TWO_PI * u2 if theta is None else theta).astype(np.float64)
    r = np.sqrt(np.float32(-2) * log)
    y = np.stack([r * np.cos(angle).astype(np.float32), r * np.sin(angle).astype(np.float32)], axis=1)
    return y.reshape(-1)


def _box_muller_16_f64(d: np.ndarray) -> np.ndarray:
    """Turn uniforms in [0, 1) into normals in blocks of 16, in float64. d: [16 B] -> [16 B]"""
    u1, u2 = 1 - d.reshape(-1, 2, 8)[:, 0], d.reshape(-1, 2, 8)[:, 1]
    r, theta = np.sqrt(-2 * np.log(u1)), 2 * np.pi * u2
    return np.stack([r * np.cos(theta), r * np.sin(theta)], axis=1).reshape(-1)


class TorchAvx2(TorchCpu):
    """The normals of torch.randn on an x86-64 CPU with AVX2 or AVX-512: noise of ComfyUI, diffusers, k-diffusion.

    Error: 4 million normals are bit-exact with torch 2.13, also in float16 and bfloat16. float64 is TorchCpu's.
    """

    def _box_muller(self, d: np.ndarray) -> np.ndarray:
        return box_muller_avx2(d)


class TorchScalar(TorchCpu):
    """The normals of torch.randn on a CPU without AVX2: theta = 2 pi d is a float64 product, rounded once.

    Near theta = pi the sine differs by 1e-5 of its value from those of TorchCpu and TorchAvx2, which agree there.
    Error: <= 3 ULP against torch 2.13 with ATEN_CPU_CAPABILITY=default; bit-exact with glibc's float functions.
    Source: PyTorch aten/src/ATen/native/cpu/DistributionTemplates.h, normal_fill_16.
    """

    def _box_muller(self, d: np.ndarray) -> np.ndarray:
        return _box_muller_16(d, (2 * np.pi * d.reshape(-1, 2, 8)[:, 1].astype(np.float64)).astype(np.float32))


# `cpu` is bit-exact with torch on today's CPUs. stable-diffusion.cpp's RNG `cpu`, the same stream, is cpu_sdcpp.
RNGS: dict[str, Callable[[int], Noise]] = {
    "cuda": Philox,
    "nv": PhiloxNv,
    "cpu": TorchAvx2,
    "cpu_sdcpp": TorchCpu,
    "cpu_scalar": TorchScalar,
}
