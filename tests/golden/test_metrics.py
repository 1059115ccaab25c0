"""What is measured of an answer, beside loops over its elements."""

import itertools
import math

import numpy as np
import pytest

from refsd.golden.metrics import INFINITE, channel_axis, measure
from refsd.golden.rounding import Bound

_RNG = np.random.default_rng(11)


def _rms(values) -> float:
    return math.sqrt(sum(float(v) ** 2 for v in values) / len(values))


def _tiles(shape, channel):
    """First indices without the channel, and the slice: 8 x 8 of the last two axes, 1 of the others."""
    axes = [axis for axis in range(len(shape)) if axis != channel]
    steps = [8 if axis in axes[-2:] else 1 for axis in axes]
    for start in itertools.product(*(range(0, shape[axis], step) for axis, step in zip(axes, steps, strict=True))):
        place = [slice(None)] * len(shape)
        for axis, at, step in zip(axes, start, steps, strict=True):
            place[axis] = slice(at, at + step)
        yield start, tuple(place)


@pytest.mark.parametrize(
    ("shape", "channel"), [((2, 3, 20, 17), 1), ((3, 11, 5), -1), ((9, 30), -1), ((13,), -1), ((2, 2, 3, 9, 10), 1)]
)
def test_errors_in_units_of_the_bound(shape, channel):
    truth, z, noise = _RNG.standard_normal((3, *shape))
    limit, spread = np.exp(_RNG.standard_normal((2, *shape)))
    honest, found = truth + noise * limit / 7, truth + z * limit
    metrics = measure("y", found, truth, honest, Bound(limit, spread), channel)
    flat = list(z.reshape(-1))
    channels = [_rms(part.reshape(-1)) for part in np.moveaxis(z, channel, 0)]
    tiles = {start: _rms(z[place].reshape(-1)) for start, place in _tiles(shape, channel % len(shape))}
    at = np.unravel_index(int(np.argmax(np.abs(z))), shape)
    engine = metrics.engine
    assert engine is not None and metrics.typical is not None and metrics.honest is not None
    assert engine.worst == pytest.approx(max(map(abs, flat))) and engine.at == at
    assert engine.rms == pytest.approx(_rms(flat))
    assert engine.bias == pytest.approx(math.fsum(flat) / len(flat))
    assert engine.gain == pytest.approx(math.fsum(flat * np.sign(truth).reshape(-1)) / len(flat))
    assert (engine.channel, engine.channel_at) == (pytest.approx(max(channels)), channels.index(max(channels)))
    assert (engine.tile, engine.tile_at) == (pytest.approx(max(tiles.values())), max(tiles, key=tiles.__getitem__))
    assert metrics.honest.rms == pytest.approx(_rms(noise.reshape(-1)) / 7)
    assert metrics.typical.rms == pytest.approx(_rms((spread / limit).reshape(-1)))
    assert (metrics.error, metrics.limit) == (pytest.approx(z[at] * limit[at]), limit[at])
    assert (metrics.truth, metrics.found_value) == (truth[at], found[at])
    size = np.linalg.norm(truth)
    assert metrics.relative_l2 == pytest.approx(np.linalg.norm(found - truth) / size)
    assert metrics.honest_relative_l2 == pytest.approx(np.linalg.norm(honest - truth) / size)
    assert metrics.groups == min(shape[channel], math.prod(shape) // shape[channel])


def test_without_a_bound_the_honest_run_is_the_unit():
    truth, noise, other = _RNG.standard_normal((3, 2, 5, 4, 3))
    metrics = measure("y", truth + 3e-3 * other, truth, truth + 1e-3 * noise, None, 1)
    assert metrics.engine is not None and not metrics.bounded
    assert metrics.engine.rms == pytest.approx(3 * _rms(other.reshape(-1)) / _rms(noise.reshape(-1)))
    assert metrics.typical is not None and metrics.typical.rms == 1
    exact = measure("y", truth * (1 + 2.0**-40), truth, truth, None, 1)
    assert exact.engine is not None and exact.engine.rms == pytest.approx(2.0**10, rel=1e-3)


def test_what_has_no_limit_and_what_is_no_number():
    """Elements: right, without limit, infinite as the truth, NaN as the truth, NaN, a number for infinity."""
    truth = np.array([1.0, 2.0, np.inf, np.nan, 5.0, np.inf])
    found = np.array([1.0, -9.0, np.inf, np.nan, np.nan, 7.0])
    limit = np.array([0.5, np.inf, 0.5, 0.5, 0.5, 0.5])
    metrics = measure("y", found, truth, truth, Bound(limit, 0.2 * np.ones(6)), -1)
    assert metrics.engine is not None and metrics.typical is not None
    assert (metrics.not_finite, metrics.not_finite_at) == (2, (4,))
    assert (metrics.engine.worst, metrics.relative_l2) == (0, 0)
    assert metrics.typical.worst == pytest.approx(0.4)
    assert metrics.typical.rms == pytest.approx(math.sqrt(2 * 0.4**2 / 6))


def test_an_error_where_none_is_allowed():
    truth, limit = np.array([1.0, 2.0]), np.array([0.0, 0.0])
    metrics = measure("y", np.array([1.0, 2.5]), truth, truth, Bound(limit, limit), -1)
    assert metrics.engine is not None and metrics.typical is not None
    assert (metrics.engine.worst, metrics.engine.at, metrics.typical.worst) == (INFINITE, (1,), 0)
    below = measure("y", np.array([1.0, 1.5]), truth, truth, Bound(limit, limit), -1)
    assert below.engine is not None and below.engine.bias == -INFINITE / 2


def test_another_shape_and_nothing():
    truth = np.zeros((2, 3))
    assert measure("y", np.zeros((3, 2)), truth, truth, None, -1).found == (3, 2)
    assert measure("y", None, truth, truth, None, -1).found is None
    empty = measure("y", np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3)), None, -1)
    assert empty.engine is not None and (empty.engine.worst, empty.engine.at, empty.groups) == (0, (), 1)
    assert (empty.error, empty.truth, empty.found_value, empty.limit) == (0, 0, 0, 0)
    alone = measure("y", np.float64(3)[()] + np.zeros(()), np.zeros(()), np.zeros(()), None, 0)
    assert (alone.shape, alone.found) == ((), ())


def test_the_axis_of_channels():
    assert [channel_axis(np.zeros((1,) * rank)) for rank in (1, 2, 3, 4, 5)] == [-1, -1, -1, 1, 1]


@pytest.mark.parametrize("odd", [0.0, np.inf, np.nan])
def test_the_reference_as_an_engine_is_measured_as_any_other(odd):
    """Its answer is the honest run itself, whose errors are measured once."""
    truth = np.arange(24.0).reshape(2, 3, 4) - 5
    honest = (truth * (1 + 2.0**-20)).astype(np.float32)
    honest[1, 2, 3] += odd
    assert measure("y", honest, truth, honest, None, -1) == measure("y", honest.copy(), truth, honest, None, -1)
