"""What a picture of tiles shows of bugs that no list has: tilers of our own, each with one thing wrong."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden.judge import Standard
from refsd.judges.stage import StageJudge
from refsd.models.vae.tiling import places, shared, smootherstep
from refsd.numerics.profiles import FLOAT32, FLOAT64

JUDGE = StageJudge()


def _decode(z, up, *_):
    return np.kron(z - z.mean((2, 3), keepdims=True), np.ones((1, 1, up, up)))


def added(
    z, p, ramp=smootherstep, up_at=lambda i, n: i / n, down_at=lambda i, n: i / n, decode=_decode, longer=0, lower=0
):
    """stable-diffusion.cpp's tiles: each times its two ramps, added up. up_at, down_at: place, length -> 0..1"""
    up, sides = 3, z.shape[2:]
    out, last = np.zeros((*z.shape[:2], *(up * n for n in sides))), []
    axes = []
    for length, size in zip(sides, p["size"], strict=True):
        size, share = min(size, length), shared(length, size, p["overlap"])
        axes.append([(tile, size, share * up + longer, length) for tile in places(length, size, share)])
    for row in axes[0]:
        for column in axes[1]:
            weights, to = [], []
            for tile, size, share, length in (row, column):
                i = np.arange(tile.skip * up, size * up)
                begins = up_at(i - tile.skip * up, share) if tile.start else np.ones(len(i))
                ends = down_at(size * up - i, share) if tile.start < length - size else np.ones(len(i))
                weights.append(ramp(np.minimum(begins, ends).clip(0, 1)))
                to.append(slice(tile.start * up + tile.skip * up, tile.start * up + size * up))
            (top, high), (left, wide) = ((tile.start, size) for tile, size, *_ in (row, column))
            top += lower * (0 < top < sides[0] - high)
            y = decode(z[:, :, top : top + high, left : left + wide], up, *last)
            last = [y]
            y = y[:, :, row[0].skip * up :, column[0].skip * up :]
            out[:, :, to[0], to[1]] += y * weights[0][:, None] * weights[1]
    return out


def mixed(z, p, share=lambda i, n: i / n, padded=None, first=0, earlier=0):
    """diffusers' tiles. padded: (tile, size) -> what is decoded; first: 1 to mix columns before rows

    earlier: pixels by which the tile before is read nearer to its beginning
    """
    up, size = 3, p["size"][0]
    step, blend = int(size * (1 - p["overlap"])), int(size * up * p["overlap"])
    cuts = [
        [z[:, :, i : i + size, j : j + size] for j in range(0, z.shape[3], step)]
        for i in range(0, z.shape[2], step)
    ]
    rows = [
        [_decode(padded(t, size) if padded else t, up)[:, :, : t.shape[2] * up, : t.shape[3] * up] for t in row]
        for row in cuts
    ]
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            pairs = [(rows[i - 1][j] if i else None, 2), (rows[i][j - 1] if j else None, 3)]
            for before, axis in pairs[::-1] if first else pairs:
                if before is None:
                    continue
                a, b = np.moveaxis(before, axis, 0), np.moveaxis(tile, axis, 0)
                n = min(len(a), len(b), blend)
                for k in range(n):
                    b[k] = a[max(len(a) - n + k - earlier, 0)] * (1 - share(k, n)) + b[k] * share(k, n)
    kept = size * up - blend
    return np.concatenate([np.concatenate([t[:, :, :kept, :kept] for t in row], 3) for row in rows], 2)


def _with_the_last(z, up, before=None):
    y = _decode(z, up)
    return y if before is None else 0.75 * y + 0.25 * before


def _zeros(tile, size):
    y = np.zeros((*tile.shape[:2], size, size))
    y[:, :, : tile.shape[2], : tile.shape[3]] = tile
    return y


def _with_ones(tile, size):
    return np.where(_zeros(np.ones_like(tile), size) > 0, _zeros(tile, size), 1)


def causes(name, picture=None, tiles=None):
    case = CASES[f"stage/tiles/{name}"]
    inputs = case.realize()
    truth, honest = Reference(FLOAT64).run(case, inputs), Reference(FLOAT32).run(case, inputs)
    z = inputs["z"].values().astype(np.float64)
    found = {key: np.array(y) for key, y in honest.items()}
    if picture is not None:
        found["picture"] = picture(z, case.params).astype(np.float32)
    if tiles is not None:
        found["tiles"] = tiles(found["tiles"])
    return JUDGE.explain(Standard(case, inputs, truth, honest, FLOAT32), found).causes


SMALL = "diffusers-small-last"


def test_our_tilers_are_right():
    for name, tiler in (("sdcpp-odd", added), ("sdcpp-half", added), ("diffusers-odd", mixed), (SMALL, mixed)):
        case = CASES[f"stage/tiles/{name}"]
        inputs = case.realize()
        truth = Reference(FLOAT64).run(case, inputs)["picture"]
        assert np.abs(tiler(inputs["z"].values().astype(np.float64), case.params) - truth).max() < 1e-12


@pytest.mark.parametrize(
    ("name", "picture", "cause"),
    [
        ("sdcpp-odd", lambda z, p: added(z, p, np.square), "weights of two tiles add up to 0.5"),
        ("sdcpp-half", lambda z, p: added(z, p, np.sqrt), "weights of two tiles add up to"),
        (
            "sdcpp-half",
            lambda z, p: added(z, p, lambda t: np.sin(np.pi / 2 * t) ** 2),
            "the ramp is another: the later",
        ),
        (
            "sdcpp-odd",
            lambda z, p: added(z, p, up_at=lambda i, n: i // 3 * 3 / n),
            "weights of two tiles add up to",
        ),
        ("sdcpp-odd", lambda z, p: added(z, p, longer=3), "to 1 where no other tile is, not 1"),
        (
            "sdcpp-half",
            lambda z, p: added(z, p, decode=_with_the_last),
            "multiplied by 0.75, and the tile before is added",
        ),
        (
            "sdcpp-odd",
            lambda z, p: added(z, p, lower=1),
            "cut from the latent 1 row too far down",
        ),
        ("sdcpp-half", lambda z, p: added(z, p, decode=lambda z, up, *_: 2 * _decode(z, up) - 1), ""),
        (
            "diffusers-odd",
            lambda z, p: mixed(z, p, lambda i, n: smootherstep(i / n)),
            "the ramp is another: the later",
        ),
        (
            "diffusers-odd",
            lambda z, p: mixed(z, p, earlier=3),
            "along shared columns the tile before is read -3 columns from its place, not +0",
        ),
        ("diffusers-odd", lambda z, p: mixed(z, p, padded=_zeros), "padded with zeros to a whole tile"),
        (SMALL, lambda z, p: mixed(z, p, padded=_with_ones), "decoded with other pixels beside its own"),
        (SMALL, lambda z, p: mixed(z, p, first=1), "wrong only where more than two tiles meet"),
    ],
)
def test_a_picture_shows_what_is_wrong(name, picture, cause):
    found = causes(name, picture)
    assert cause in found[0] if cause else not any("tile" in one for one in found)


def test_tiles_that_lie_elsewhere_are_told_in_rows_and_columns():
    def earlier(tiles):
        return tiles - np.where(tiles[:, :1] > 0, [[1, 0, 0, 0]], 0)

    assert causes("sdcpp-odd", tiles=earlier) == [
        "the tiles' rows begin 1 too small from tile 4 on: tile 4 has 4 for 5"
    ]


def test_weights_that_are_nearly_right_are_not_told_as_right():
    """They are too near to be another rule's, and the picture is wrong where two tiles meet."""
    nearly = lambda t: smootherstep(t) + 2e-4 * np.sin(np.pi * t)
    assert not any(
        "only where more than two" in one for one in causes("sdcpp-odd", lambda z, p: added(z, p, nearly))
    )
