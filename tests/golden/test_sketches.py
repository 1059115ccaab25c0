"""A sketch is small, and no error hides from its bound."""

import msgspec
import numpy as np
import pytest

from refsd.golden.sketches import ROWS, bound, decode, encode, sketch, sums_of
from refsd.numerics.errors import BadInput

_RNG = np.random.default_rng(5)
_SHAPE = (1, 3, 96, 128)
_TRUTH = _RNG.standard_normal(_SHAPE)
_NOISE = 1e-6 * _RNG.standard_normal(_SHAPE)
_GOLDEN = sketch("full/a", "0", {"y": _TRUTH}, {"float32": {"y": _TRUTH + _NOISE}})


def _bound(found, golden=_GOLDEN):
    return bound("full/a", "y", golden.note.outputs["y"], golden.sums["y"], found)


def _one(at, size):
    error = np.zeros(_SHAPE)
    error[at] = size
    return error


_ERRORS = {
    "one element": _one((0, 1, 50, 60), 1e-3),
    "two that cancel": _one((0, 0, 0, 0), 1e-3) + _one((0, 2, 95, 127), -1e-3),
    "bias": np.full(_SHAPE, 1e-3),
    "gain": 1e-3 * _TRUTH,
    "a channel": 1e-3 * (np.arange(3) == 1)[None, :, None, None] * np.ones(_SHAPE),
    "checkerboard": 1e-3 * (-1.0) ** np.add.outer(np.arange(96), np.arange(128)) * np.ones(_SHAPE),
    "noise": 1e-3 * _RNG.standard_normal(_SHAPE),
}


@pytest.mark.parametrize("kind", _ERRORS)
def test_the_bound_holds_for_every_element_and_the_rms_is_known(kind):
    error = _ERRORS[kind]
    found = _bound(_TRUTH + error)
    assert found.worst >= np.abs(error).max()
    assert found.rms == pytest.approx(np.sqrt(np.mean(error**2)), rel=0.1)
    assert found.chance == _TRUTH.size * 2.0**-ROWS < 1e-5


def test_one_wrong_element_of_many_is_detected_and_placed():
    """Among honest errors, from four times the honest run's bound on."""
    rms, honest = _GOLDEN.note.outputs["y"].honest["float32"]
    assert rms == pytest.approx(1e-6, rel=0.02) and honest < 150 * rms
    assert _bound(_TRUTH - _NOISE).worst < 2 * honest
    found = _bound(_TRUTH + _NOISE + _one((0, 2, 17, 90), 4 * honest))
    assert found.worst >= 3.9 * honest and found.at == (0, 2, 17, 90)
    assert found.estimate == pytest.approx(4 * honest, rel=0.1)


def test_the_file_is_small_whatever_the_size():
    outputs = {"last": np.ones((2, 77, 768)), "pooled": np.ones((2, 768)), "image": np.ones((1, 3, 256, 256))}
    golden = sketch("full/b", "0", outputs, {})
    data = encode(golden)
    assert len(data) < 1 << 16 and sum(y.nbytes for y in outputs.values()) > 40 * len(data)
    again = decode(data, "b")
    assert again.note == golden.note and all(np.array_equal(again.sums[k], y) for k, y in golden.sums.items())
    assert bound("full/b", "last", again.note.outputs["last"], again.sums["last"], outputs["last"]).worst < 1e-9


def test_the_sums_are_what_the_page_says():
    from refsd.golden.recipe import words_of

    y = _RNG.standard_normal(11)
    right = np.zeros((ROWS, 3))
    for r in range(ROWS):
        words = [int(w) for chunk in words_of(f"c/y/sketch/{r}", 3) for w in chunk.ravel()]
        for i in range(11):
            right[r, (words[i] >> 1) * 3 // 2**31] += y[i] * (-1 if words[i] % 2 else 1)
    np.testing.assert_allclose(sums_of("c", "y", y, 3), right, atol=1e-15)


@pytest.mark.parametrize("damage", [b"", b"no", encode(_GOLDEN)[:-8]])
def test_another_file_is_refused(damage):
    with pytest.raises(BadInput, match=r"s\.safetensors: not a sketch"):
        decode(damage, "s.safetensors")
    short = _GOLDEN._replace(sums={"y": _GOLDEN.sums["y"][:5].copy()})
    with pytest.raises(BadInput, match="make the sketch again"):
        decode(encode(short), "s")
    with pytest.raises(BadInput, match="not finite"):
        sketch("a", "0", {"y": np.array([np.nan])}, {})
    assert msgspec.json.decode(msgspec.json.encode(_GOLDEN.note))["case"] == "full/a"
