"""Bugs of real engines that only unusual sizes show: many rows, long columns, sums and scores beyond float16.

No case had shown them when they were found (docs/generalisation.md); each is one here, under three profiles.
"""

from fnmatch import fnmatch

import numpy as np
import pytest
from injection import Bug, Injected, wrong_operation
from naive.interpolate import resize

from refsd.cases import CASES
from refsd.golden.operations import run
from refsd.kernels.attention_int8 import codes_of_blocks
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, GGML_CPU, TORCH_F16
from refsd.shrinking.failure import ask, runner_of


def _rows_of_a_grid(groups: int) -> Bug:
    """A grid of so many groups, one a row: the others keep what the memory held."""

    def answer(case, inputs, y):
        y = y["y"].copy()
        y.reshape(-1, y.shape[-1])[groups:] = 0
        return {"y": y}

    return Bug(answer=answer)


def _taps_of_a_block(case, inputs, y):
    """A thread for each tap of a column, of 1024."""
    y = y["y"].copy()
    y[:, 1024:] = 0
    return {"y": y}


def _half_the_columns(case, inputs, y):
    """Tiles of rows are counted by half of the columns."""
    y = y["y"].copy()
    y.reshape(-1, y.shape[-1])[inputs["x"].shape[-1] // 2 :] = 0
    return {"y": y}


def _by_the_sizes(name: str) -> Bug:
    """The factor is forgotten once the size is known."""

    def answer(case, inputs, y):
        x = inputs["x"].values().astype(np.float64)
        return {"y": resize(name, x, case.params["height"], case.params["width"]).astype(y["y"].dtype)}

    return Bug(answer=answer)


def _divided_by_more_than_2(case, inputs, y):
    """Pixels are sought by a quotient in float32, whose divisor is the number behind 2."""
    more = np.nextafter(np.float32(2), np.float32(3))
    rows, columns = ((np.arange(n, dtype=np.float32) / more).astype(int) for n in y["y"].shape[2:])
    return {"y": inputs["x"].values()[:, :, rows[:, None], columns].astype(y["y"].dtype)}


def _half(x) -> np.ndarray:
    return np.asarray(x).astype(np.float16).astype(np.float32)


def _summed_in_float16(x, axis) -> np.ndarray:
    return np.add.accumulate(x.astype(np.float16), axis=axis, dtype=np.float16).take([-1], axis).astype(np.float32)


def _group_norm(self, right, x, weight, bias, groups, eps):
    rows = x.reshape(len(x), groups, -1).astype(np.float32)
    centred = rows - _summed_in_float16(rows, 2) / np.float32(rows.shape[2])
    y = (centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + eps)).reshape(x.shape)
    return y * weight[:, None, None] + bias[:, None, None]


def _layer_norm(self, right, x, weight, bias, eps):
    centred = x.astype(np.float32) - _summed_in_float16(x, -1) / np.float32(x.shape[-1])
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def _avg_pool(case, inputs, y):
    x, (R, S) = inputs["x"].values(), case.params["kernel_size"]
    N, C, H, W = x.shape
    windows = x.reshape(N, C, H // R, R, W // S, S).transpose(0, 1, 2, 4, 3, 5).reshape(N, C, H // R, W // S, -1)
    return {"y": (_summed_in_float16(windows, -1)[..., 0] / np.float32(R * S)).astype(y["y"].dtype)}


def _attention(self, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Scores in float16, then a softmax in float32."""
    s = _half(np.einsum("blhd,bjhd->bhlj", q, k).astype(np.float32) * np.float32(scale))
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhlj,bjhe->blhe", e / e.sum(axis=-1, keepdims=True), v)


def _heads_by_tiles(self, right, q, k, v, *rest, **named):
    """Each 16 query heads read the next head of keys, whatever the size of a group; beyond the last, the last."""
    read = np.minimum(np.arange(q.shape[2]) // 16, k.shape[2] - 1)
    return right(q, np.ascontiguousarray(k[:, :, read]), np.ascontiguousarray(v[:, :, read]), *rest, **named)


def _counted_by_16_bits(case, inputs, y):
    """The number of a pixel wraps at 65536."""
    return {"y": y["y"][..., np.arange(y["y"].shape[-1]) % 65536]}


def _attention_int8(case, inputs, y):
    """The scale of each block of queries is stored in float16."""
    q, k, v = (inputs[name].values().astype(np.float64) for name in "qkv")
    q8, sq = codes_of_blocks(q * q.shape[-1] ** -0.5, 128)
    k8, sk = codes_of_blocks(k - k.mean(axis=1, keepdims=True), 64)
    s = np.einsum("blhd,bjhd->bhlj", q8 * _half(sq), k8 * sk)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return {"y": np.einsum("bhlj,bjhe->blhe", p / p.sum(axis=-1, keepdims=True), v).astype(y["y"].dtype)}


def _read_otherwise(**changes) -> Bug:
    """changes: a tensor in blocks, and what its bytes [blocks, bytes] are taken for"""

    def answer(case, inputs, y):
        wrong = dict(inputs)
        for name, change in changes.items():
            blocks = inputs[name].data.reshape(-1, BLOCK_TYPES[inputs[name].type].bytes).copy()
            wrong[name] = inputs[name]._replace(data=change(blocks).reshape(-1))
        return {"y": run(case.op, Arithmetic(FLOAT32), wrong, case.params)["y"].astype(y["y"].dtype)}

    return Bug(answer=answer)


def _high_first(blocks):
    codes = blocks[:, 2:]
    return np.concatenate([blocks[:, :2], codes << 4 | codes >> 4], axis=1)


def _of_the_block_before(blocks):
    return np.concatenate([np.roll(blocks[:, :2], 1, axis=0), blocks[:, 2:]], axis=1)


_BUGS = {
    "linear/q8_0/tall-*": (Bug(answer=_half_the_columns), "rows from half as many as columns"),
    "linear_int8/tall-*": (Bug(answer=_half_the_columns), "rows from half as many as columns"),
    "resize_bilinear/f32/factor-up-*": (_by_the_sizes("resize_bilinear"), "pixels H / height apart"),
    "resize_bicubic/f32/factor-down-*": (_by_the_sizes("resize_bicubic_antialias"), "pixels H / height apart"),
    "resize_nearest/f32/inexact-*": (Bug(answer=_divided_by_more_than_2), "by a step that is rounded down"),
    "linear/f32/rows-*": (_rows_of_a_grid(32768), "rows from 32768 on"),
    "softmax/f32/rows-*": (_rows_of_a_grid(65535), "rows from 65535 on"),
    "rms_norm/f32/rows-*": (_rows_of_a_grid(65535), "rows from 65535 on"),
    "im2col/f32/one-axis-*": (Bug(answer=_taps_of_a_block), "taps of a column from 1024 on"),
    "group_norm/f32/summed-*": (wrong_operation(group_norm=_group_norm), "the mean's sum in float16"),
    "layer_norm/f32/summed-*": (wrong_operation(layer_norm=_layer_norm), "the mean's sum in float16"),
    "avg_pool2d/f32/loud-*": (Bug(answer=_avg_pool), "the window's sum in float16"),
    "attention/f32/beyond-*": (wrong_operation(attention=_attention), "scores in float16"),
    "attention_int8/faint-*": (Bug(answer=_attention_int8), "scales of queries in float16"),
    "attention/f32/one-query-*": (
        wrong_operation(attention=_heads_by_tiles),
        "entries of k and v along axis 2 are read that of the first of each 16",
    ),
    "pad/f32/frames-*": (
        Bug(answer=_counted_by_16_bits),
        "x, axis W: the first tile of 64 is read again for all, in the last 64 of",
    ),
    "attention/f32/cache-*": (_read_otherwise(v=_high_first), "the cache's values: nibbles in the wrong order"),
    "attention/f32/cache*": (
        _read_otherwise(k=_of_the_block_before),
        "the cache's keys: scale of the neighbouring",
    ),
}
# Stored in float16, the honest engine's scores are infinite, too.
_HONEST = (("attention/f32/beyond-*", TORCH_F16),)


@pytest.mark.parametrize("numerics", [FLOAT32, TORCH_F16, GGML_CPU], ids=lambda numerics: numerics.name)
@pytest.mark.parametrize("cases", _BUGS)
def test_a_rare_size_shows_its_bug(cases, numerics):
    bug, says = _BUGS[cases]
    (case,) = (case for name, case in CASES.items() if fnmatch(name, cases))
    result = ask(runner_of(), Injected(bug, numerics, None), case)
    assert result is not None
    if (cases, numerics) in _HONEST:
        assert result.status == "pass"
        return
    assert result.status == "fail" and result.op == case.op
    assert result.causes and result.causes[0].startswith(says), (result.causes, result.looks)
