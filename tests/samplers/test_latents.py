"""Latents add up as arrays do; a sampler's text run on arrays is the second opinion on its sums."""

import inspect

import numpy as np
import pytest

from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.latents import Latents, array_of, sampler, scaled, settle
from refsd.samplers.noise import Philox, independent
from refsd.samplers.step import intervals, no_callback

KINDS = {"": SAMPLERS, "flow ": FLOW_SAMPLERS, "cfg++ ": CFG_PP_SAMPLERS}
EVERY = {f"{kind}{name}": sampler for kind, samplers in KINDS.items() for name, sampler in samplers.items()}
X, Y, Z = np.random.default_rng(0).standard_normal((3, 2, 5))


def denoiser(name: str):
    one = lambda x, sigma, shift=0.2: np.tanh(x / (1 + sigma) + shift)
    return (lambda x, sigma: (one(x, sigma), one(x, sigma, -0.3))) if "cfg_pp" in name else one


@pytest.mark.parametrize("name", EVERY)
def test_the_text_on_arrays(name):
    """NumPy, an operation at a time, against weights gathered first."""
    run = EVERY[name]
    # A partial of a sampler, or one that wraps another: the text is what the outermost `sampler` was given.
    keywords = getattr(run, "keywords", {})
    run = getattr(run, "func", run)
    text = run.__wrapped__
    sigmas = np.linspace(1.0, 0.0, 8) if name.startswith("flow ") else np.append(np.geomspace(14.0, 0.03, 7), 0.0)
    x = Philox(1).randn((1, 2, 3, 4)).astype(np.float64) * sigmas[0]

    def end(f):
        noise = independent(Philox(2), x.shape)
        return f(denoiser(name), x, sigmas, lambda *ends: noise(*ends).astype(np.float64), no_callback, **keywords)

    y, plain = end(run), end(text)
    np.testing.assert_allclose(y, plain, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", EVERY)
def test_a_callback_changes_no_bit(name):
    sigmas = np.linspace(1.0, 0.1, 7) if name.startswith("flow ") else np.geomspace(14.0, 0.03, 7)
    x = Philox(1).randn((1, 2, 3, 4)) * np.float32(sigmas[0])
    heard, shown = [], []

    def model(x, sigma):
        shown.append(x)
        return denoiser(name)(x, sigma)

    y, silent = (
        EVERY[name](model, x, sigmas, independent(Philox(2), x.shape), callback)
        for callback in (lambda *told: heard.append(told), None)
    )
    np.testing.assert_array_equal(y, silent)
    assert all(type(a) is np.ndarray for a in (*shown, *(part for told in heard for part in told[2:])))


def test_sums():
    x, y, z = map(Latents.of, (X, Y, Z))
    np.testing.assert_array_equal((x + y).array(), X + Y)
    np.testing.assert_array_equal((x - 2 * y).array(), X - 2 * Y)
    np.testing.assert_allclose(((x - y) / 3 * 0.5 + np.float64(2.0) * z + X).array(), (X - Y) / 6 + 2 * Z + X)
    assert isinstance(np.float64(2.0) * x, Latents)


def test_an_array_is_read_once():
    """x - (x - y) weighs x with 0, and y with 1 exactly."""
    x, y = map(Latents.of, (X, Y))
    np.testing.assert_array_equal((x - (x - y)).array(), Y)


def test_the_array_is_kept():
    x, y = map(Latents.of, (X, Y))
    total = x + y
    array = total.array()
    assert total.array() is array and array is not X
    assert x.array() is X and array_of(x) is X and array_of(Y) is Y
    array[...] = 1.0  # as a model may do that changes what it is shown
    np.testing.assert_array_equal((2 * total - x).array(), 2 - X)


def test_a_weight_that_is_no_number_is_not_taken_for_1():
    assert np.isnan((Latents.of(X) * float("nan")).array()).all()


def test_settled():
    total = settle(Latents.of(X) + Latents.of(Y))
    assert len(total.arrays) == 1
    assert settle(X) is X


def test_scaled():
    y = Latents.of(X) + Latents.of(Y)
    x = scaled(y, 0.3)
    np.testing.assert_allclose(x.array(), 0.3 * (X + Y), rtol=1e-15)
    assert len(y.arrays) == 1 and (y * 0.3).array() is x.array()
    np.testing.assert_array_equal(scaled(X, 0.3), X * 0.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sampler_computes_in_the_dtype_of_x(dtype):
    @sampler
    def last(model, x, sigmas, noise, callback=None):
        for _, sigma, sigma_next in intervals(sigmas):
            x = noise(sigma, sigma_next) + model(x, sigma) + x
        return x

    y = last(lambda x, sigma: Y.astype(np.float32), X.astype(dtype), np.array([1.0, 0.5]), lambda a, b: Z)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, Z.astype(dtype) + Y.astype(np.float32).astype(dtype) + X.astype(dtype))


def test_the_caller_sees_the_texts_signature():
    assert inspect.signature(SAMPLERS["heun"]) == inspect.signature(SAMPLERS["heun"].__wrapped__)
