import json
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import noise as naive

from refsd.kernels.philox import philox4x32_10
from refsd.samplers import noise
from refsd.samplers.noise import RNGS, Mersenne, Philox, PhiloxNv, TorchCpu, TorchCuda

FIXTURE = json.loads((Path(__file__).parent.parent / "fixtures" / "rng.json").read_text())
U32 = st.integers(0, 2**32 - 1)


def recorded(tool):
    return [
        pytest.param(case, id=f"{case['rng']}-{case['seed']}") for case in FIXTURE["cases"] if case["tool"] == tool
    ]


def draw(case):
    sdcpp = case["tool"] == "stable-diffusion.cpp" and case["rng"] == "cpu"
    rng = RNGS["cpu_sdcpp" if sdcpp else case["rng"]](case["seed"])
    return np.concatenate([rng.randn((n,)) for n in case["calls"]])


def floats(case):
    return np.frombuffer(bytes.fromhex(case["float32"]), "<f4")


def ulps(a, b):
    return np.max(np.abs(a.astype(np.float64) - b) / np.spacing(np.abs(b)))


@given(U32, U32, U32, U32, U32, U32)
def test_philox_words(c0, c1, c2, c3, k0, k1):
    words = philox4x32_10(np.array([[c0, c1, c2, c3]], np.uint32), np.uint64(k0 | k1 << 32))
    assert tuple(words[0].tolist()) == naive.philox4x32((c0, c1, c2, c3), (k0, k1))


def test_philox_words_of_random123():
    """Random123's known answers, kat_vectors: philox4x32 10."""
    ones = [0xFFFFFFFF] * 4
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    words = philox4x32_10(np.array([ones], np.uint32), np.uint64(2**64 - 1))
    assert words[0].tolist() == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    words = philox4x32_10(np.array([pi], np.uint32), np.uint64(0x299F31D0A4093822))
    assert words[0].tolist() == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("seed", [0, 1, 5489, 2**32 - 1, 2**40 + 7])
def test_mersenne_words(seed):
    engine = Mersenne(seed)
    words = np.concatenate([engine.draw(n) for n in (1, 700, 0, 1300)])
    assert words.tolist() == list(islice(naive.mersenne(seed), 2001))
    expected = np.random.RandomState(seed % 2**32).randint(0, 2**32, 2001, dtype=np.uint32)
    np.testing.assert_array_equal(words, expected)


@pytest.mark.parametrize("case", recorded("stable-diffusion.cpp"))
def test_against_stable_diffusion_cpp(case):
    """Normals are its own to the bit with Philox; the twister's differ by its C library's float sin and cos."""
    y = draw(case)
    if case["rng"] == "cuda":
        np.testing.assert_array_equal(y, floats(case))
    else:
        assert ulps(y, floats(case)) <= 2


@pytest.mark.parametrize("case", recorded("torch"))
def test_against_torch(case):
    np.testing.assert_array_equal(draw(case), floats(case))


def test_published_vector():
    """The first normals of seed 0 as Forge's and A1111's rng_philox.py print them, and the stated distance."""
    known = [-0.92466259, -0.42534415, -2.6438457]
    np.testing.assert_allclose([naive.philox_normal(0, 0, i) for i in range(3)], known, rtol=3e-8)
    np.testing.assert_allclose(Philox(0).randn((3,)), known, rtol=0, atol=1e-6)
    rng = Philox(2**33 + 5)
    for call in range(2):
        exact = [naive.philox_normal(2**33 + 5, call, i) for i in range(1000)]
        np.testing.assert_allclose(rng.randn((1000,)), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("threads", [256, 512, 1 << 20])
def test_numbers_of_a_gpus_threads(threads):
    """Thread by thread, as its kernel loops: four normals of each counter, written a grid apart."""
    seed, n, rng = (1 << 33) + 7, 2700, TorchCuda((1 << 33) + 7, threads)
    T, first = min(threads, 2816), 0
    for _ in range(2):
        expected = np.zeros(n)
        for thread in range(T):
            for rounds, start in enumerate(range(thread, n, 4 * T)):
                g = naive.philox4x32((first + rounds, 0, thread, 0), (seed % 2**32, seed // 2**32))
                for j, i in enumerate(range(start, min(n, start + 4 * T), T)):
                    radius = math.sqrt(-2 * math.log((g[j // 2 * 2] + 0.5) / 2**32))
                    turn = 2 * math.pi * (g[j // 2 * 2 + 1] + 0.5) / 2**32
                    expected[i] = radius * (math.cos(turn) if j % 2 else math.sin(turn))
        np.testing.assert_allclose(rng.randn((n,)), expected, rtol=0, atol=1e-5)
        first += -(-n // (4 * T))


def test_a_gpu_of_enough_threads_draws_what_philox_nv_does():
    gpu, nv = TorchCuda(5, 4096), PhiloxNv(5)
    for _ in range(2):
        np.testing.assert_array_equal(gpu.randn((4, 1000)), nv.randn((4, 1000)))


def test_the_smallest_uniform_is_no_zero(monkeypatch):
    """Words of zero are the centre of the first of 2^32 cells."""
    monkeypatch.setattr(noise, "philox4x32_10", lambda counters, key: np.zeros_like(counters))
    expected = np.sqrt(66 * np.log(2)) * np.sin(2 * np.pi * 2.0**-33)
    np.testing.assert_allclose(Philox(0).randn((2,)), expected, rtol=1e-6)


@pytest.mark.parametrize("name", RNGS)
def test_normal_distribution(name):
    y = RNGS[name](42).randn((4, 64, 65)).astype(np.float64)
    assert y.shape == (4, 64, 65)
    assert abs(y.mean()) < 0.03 and abs(y.std() - 1) < 0.02 and abs((y**4).mean() - 3) < 0.2


@pytest.mark.parametrize("name", RNGS)
def test_a_stream_has_state(name):
    one, two = RNGS[name](1), RNGS[name](1)
    first = one.randn((2, 20))
    np.testing.assert_array_equal(first, two.randn((2, 20)))
    assert not np.array_equal(first, one.randn((2, 20)))
    assert first.dtype == np.float32


def test_the_sine_half_waits_for_the_next_call():
    apart = TorchCpu(9)
    together = TorchCpu(9).randn((4,))
    np.testing.assert_array_equal(np.concatenate([apart.randn((1,)), apart.randn((3,))]), together)
