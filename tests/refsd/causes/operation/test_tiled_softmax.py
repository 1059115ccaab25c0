"""A softmax in tiles whose maxima differ, rescaled or merged wrongly, is named."""

import numpy as np
import pytest
from naming import named

pytestmark = pytest.mark.jitted


def _values(inputs, *names):
    return (inputs[name].values().astype(np.float64) for name in names)


def _scores(inputs):
    q, k = _values(inputs, "q", "k")
    k = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    return np.einsum("blhd,bjhd->bhlj", q, k) * q.shape[-1] ** -0.5


def _online(tile, of_sum=1.0, of_values=1.0):
    """Attention, tile by tile. of_sum, of_values: the powers of exp(old maximum - new) that rescale each"""

    def wrong(op, inputs, params):
        s, (v,) = _scores(inputs), _values(inputs, "v")
        top, total, y = np.full((*s.shape[:-1], 1), -1e30), 0.0, 0.0
        if "sinks" in inputs:
            top, total = top * 0 + inputs["sinks"].values()[:, None, None], 1.0
        for j in range(0, s.shape[-1], tile):
            own = np.maximum(top, s[..., j : j + tile].max(axis=-1, keepdims=True))
            less, p = np.maximum(top - own, -700), np.exp(s[..., j : j + tile] - own)
            values = np.repeat(v[:, j : j + tile], s.shape[1] // v.shape[2], axis=2)
            total = total * np.exp(of_sum * less) + p.sum(axis=-1, keepdims=True)
            y = y * np.exp(of_values * less) + p @ values.transpose(0, 2, 1, 3)
            top = own
        return (y / total).transpose(0, 2, 1, 3)

    return wrong


def _in_parts(parts, averaged):
    def wrong(op, inputs, params):
        s, (v,) = _scores(inputs), _values(inputs, "v")
        cut = np.array_split(np.arange(s.shape[-1]), parts)
        e = [np.exp(s[..., of] - s[..., of].max(axis=-1, keepdims=True)) for of in cut]
        sums = [p.sum(axis=-1, keepdims=True) for p in e]
        each = [p @ v[:, of].transpose(0, 2, 1, 3) for p, of in zip(e, cut, strict=True)]
        if averaged:
            return (sum(y / of for y, of in zip(each, sums, strict=True)) / parts).transpose(0, 2, 1, 3)
        return (sum(each) / sum(sums)).transpose(0, 2, 1, 3)

    return wrong


CROSS, SINKS = "attention/f32/cross-b2-l20-j77-h2-d40", "attention/f32/sinks-b2-l20-j33-h3-d32"


@pytest.mark.parametrize(
    ("case", "wrong", "words"),
    [
        (CROSS, _online(24, of_sum=0), "tiles of 24 scores: a larger maximum does not rescale {} to the sum"),
        (CROSS, _online(2, of_values=2), "tiles of 2 scores: a larger maximum rescales twice {} to the values"),
        (CROSS, _online(40, -1, -1), "tiles of 40 scores: a larger maximum rescales the wrong way {}"),
        (SINKS, _online(1, of_values=0), "tiles of 1 score: a larger maximum does not rescale {} to the values"),
        (CROSS, _in_parts(3, averaged=False), "the 3 parts of a row are added up as if their maxima were equal"),
        (CROSS, _in_parts(3, averaged=True), "the 3 parts of a row are averaged, each divided by its own sum"),
    ],
)
def test_tiles_or_parts_are_rescaled_or_merged_wrongly(case, wrong, words):
    assert named(case, wrong)[:1] == [words.format("what earlier tiles gave")]


def test_tiles_that_are_rescaled_rightly_are_no_cause():
    assert named(CROSS, _online(24)) == []
