"""Tiles: where they lie, what they weigh, and what comes of them."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import vae_tiling as naive

from refsd.circular import CircularAxes
from refsd.models.vae import tiling as vae_tiling
from refsd.models.vae.tiling import Tile, Tiling, places, shared, tiled_diffusers, tiled_sdcpp
from refsd.numerics.errors import BadInput


def picture(z, up=2):
    """Something that shows which tile a pixel comes from, and from where in it."""
    y = z.repeat(up, 2).repeat(up, 3)
    rows, columns = np.arange(y.shape[2])[:, None], np.arange(y.shape[3])
    return np.concatenate([y * (1 + z.mean((1, 2, 3), keepdims=True)), y + 0.1 * rows - 0.3 * columns], axis=1)


def grow(z):
    """A decoder that needs a hundred times its output."""
    work = np.ones((100, *z.shape[2:], 8, 8))
    return work.sum(0).reshape(1, 1, 8 * z.shape[2], 8 * z.shape[3]) + z.mean()


def latent(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
    ("shape", "size", "percent"),
    [((9, 20), (4, 8), 50), ((16, 11), (5, 4), 25), ((7, 33), (7, 16), 50), ((8, 12), (4, 4), 0)],
)
@pytest.mark.parametrize("wraps", [(False, False), (True, False), (False, True), (True, True)])
def test_sdcpp_against_the_naive_one(shape, size, percent, wraps):
    z = latent(2, 3, *shape)
    shares = [naive.shared(n, s, percent, loop) for n, s, loop in zip(shape, size, wraps, strict=True)]
    how = size, percent / 100, 2, 1, CircularAxes(wraps[1], wraps[0])
    if max(shares) > 0 and any(loop and share <= 0 for loop, share in zip(wraps, shares, strict=True)):
        with pytest.raises(BadInput, match="wrap around without overlap"):
            tiled_sdcpp(picture, z, *how)
        return
    got = tiled_sdcpp(picture, z, *how)
    want = naive.tiled_sdcpp(picture, z, size, percent, 2, wraps)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "size", "out_size", "overlap"),
    [
        ((9, 20), 8, 16, 0.25),
        ((5, 7), 5, 10, 0.25),
        ((11, 4), 6, 12, 0.5),
        ((4, 5), 8, 16, 0.25),
        ((9, 7), 5, 11, 0.3),
    ],
)
def test_diffusers_against_the_naive_one(shape, size, out_size, overlap):
    z = latent(2, 3, *shape)
    got = tiled_diffusers(picture, z, size, out_size, overlap)
    np.testing.assert_allclose(got, naive.tiled_diffusers(picture, z, size, out_size, overlap), rtol=0, atol=1e-12)


@given(st.integers(1, 300), st.integers(4, 70), st.integers(0, 50), st.booleans())
def test_what_neighbours_share_by_exact_arithmetic(length, size, percent, wraps):
    """Powers of two to the last pixel; else float32 may make a pixel less of it."""
    size = max(min(size, length), 4)
    got, want = shared(length, size, percent / 100, wraps), naive.shared(length, size, percent, wraps)
    if percent in (0, 25, 50) or np.float32(percent / 100) * np.float32(size) >= size * percent // 100:
        assert abs(got) in ((abs(want),) if size in (4, 8, 16, 32, 64) else (abs(want), abs(want) - 1))


def test_a_float32_makes_it_a_pixel_less():
    """22 * float32(13 / 22) is below 13."""
    assert naive.shared(31, 22, 50) == 13
    assert shared(31, 22, 0.5) == 12
    assert places(31, 22, 12) == [Tile(0, 0), Tile(9, 1)]


@given(st.integers(1, 150), st.integers(4, 40), st.floats(0, 0.5))
def test_weights_of_a_picture_that_does_not_wrap_sum_to_one(length, size, overlap):
    size = max(min(size, length), 4)
    for y in (
        tiled_sdcpp(lambda t: t, np.ones((1, 1, 5, length)), (4, size), overlap),
        tiled_sdcpp(lambda t: t.repeat(3, 2).repeat(3, 3), np.ones((1, 1, length, 5)), (size, 5), overlap, up=3),
        tiled_sdcpp(lambda t: t[:, :, ::2, ::2], np.ones((1, 1, 8, 2 * length)), (4, size), overlap, down=2),
    ):
        np.testing.assert_allclose(y, 1, rtol=0, atol=1e-12)


def test_weights_around_a_ring_sum_to_one_only_if_the_tiles_fit():
    """64 and 72 latent pixels in tiles of 32 do; 56 do not: the picture is up to twice as bright there."""
    for length, brightest in ((64, 1.0), (72, 1.0), (56, 2.0), (88, 2.0)):
        y = tiled_sdcpp(lambda t: t, np.ones((1, 1, 4, length)), (4, 32), wraps=CircularAxes(x=True))
        assert y.min() >= 1 - 1e-12
        np.testing.assert_allclose(y.max(), brightest, atol=1e-2)


@pytest.mark.parametrize("wraps", [CircularAxes(x=True), CircularAxes(True, True)])
def test_tiles_that_wrap_without_overlap(wraps):
    with pytest.raises(BadInput, match="tiles of 4x4 wrap around without overlap"):
        tiled_sdcpp(picture, latent(1, 1, 6, 8), (4, 4), 0.0, up=2, wraps=wraps._replace(y=False))
    z = latent(1, 1, 8, 8)
    np.testing.assert_array_equal(
        tiled_sdcpp(lambda t: t, z, (4, 4), 0.0, wraps=wraps), z, "where none blends, tiles lie side by side"
    )


@pytest.mark.parametrize(
    ("tile", "says"),
    [
        (lambda z: tiled_sdcpp(picture, z, (4, 4), 0.6, up=2), "tiles of 4x4 that share 0.6: expected"),
        (lambda z: tiled_sdcpp(picture, z, (4, 4), float("nan"), up=2), "that share nan"),
        (lambda z: tiled_sdcpp(picture, z, (4, 1), up=2), "tiles of 1x4 that share 0.5: expected 2x2"),
        (lambda z: tiled_diffusers(picture, z, 1, 2), "tiles of 1, of 2 run, that share 0.25: nothing"),
        (lambda z: tiled_diffusers(picture, z, 4, 8, 1.0), "nothing of them is left"),
        (lambda z: tiled_diffusers(picture, z, 4, 8, -0.5), "nothing of them is left"),
    ],
)
def test_tiles_that_are_none(tile, says):
    with pytest.raises(BadInput, match=says):
        tile(latent(1, 1, 9, 9))


@pytest.mark.parametrize(
    "tile", [lambda z: tiled_sdcpp(grow, z, (8, 8), up=8), lambda z: tiled_diffusers(grow, z, 8, 64)]
)
def test_memory_beyond_the_picture_does_not_grow_with_it(tile):
    """Nine times the picture in the same memory: its own twice at most, and a row of tiles' edges."""
    beyond = []
    for side in (16, 48):
        z = latent(1, 4, side, side)
        tracemalloc.start()
        out = tile(z)
        beyond.append(tracemalloc.get_traced_memory()[1] - 2 * out.nbytes)
        tracemalloc.stop()
    assert beyond[1] <= beyond[0] + 200_000


def test_tiles_spread_evenly_over_what_there_is():
    assert places(64, 32, shared(64, 32, 0.5)) == [Tile(0, 0), Tile(16, 0), Tile(32, 0)]
    assert places(40, 32, shared(40, 32, 0.5)) == [Tile(0, 0), Tile(8, 0)]
    assert places(70, 32, shared(70, 32, 0.5)) == [Tile(0, 0), Tile(19, 0), Tile(38, 0)]
    assert places(20, 32, shared(20, 32, 0.5)) == [Tile(0, 0)]
    assert places(32, 16, shared(32, 16, 0.25)) == [Tile(0, 0), Tile(8, 0), Tile(16, 0)], "one more just fits in"


def test_each_tile_is_run_once_and_none_is_larger_than_asked():
    seen = []

    def run(z):
        seen.append(z.shape[2:])
        return picture(z)

    tiled_sdcpp(run, latent(1, 3, 9, 20), (4, 8), 0.5, up=2)
    assert seen == [(4, 8)] * 12
    seen.clear()
    tiled_diffusers(run, latent(1, 3, 9, 20), 8, 16)
    assert seen == [(8, 8), (8, 8), (8, 8), (8, 2), (3, 8), (3, 8), (3, 8), (3, 2)]


def test_a_tile_as_large_as_the_latent_is_the_latent():
    z = latent(2, 3, 7, 9)
    np.testing.assert_array_equal(tiled_sdcpp(picture, z, (7, 9), up=2), picture(z))
    np.testing.assert_array_equal(tiled_sdcpp(picture, z, (32, 32), up=2), picture(z))
    np.testing.assert_array_equal(tiled_diffusers(picture, z, 9, 18), picture(z))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_are_kept_wider_than_what_is_stored(dtype):
    z = latent(1, 2, 12, 20)
    narrow = z.astype(dtype)
    for tile in (lambda run, z: tiled_sdcpp(run, z, (4, 4), up=2), lambda run, z: tiled_diffusers(run, z, 8, 16)):
        y = tile(lambda t: t.repeat(2, 2).repeat(2, 3), narrow)
        assert y.dtype == dtype
        rtol = 0 if dtype is np.float16 else 4 * np.finfo(dtype).eps
        np.testing.assert_allclose(y, narrow.repeat(2, 2).repeat(2, 3), rtol=rtol)


def test_sizes_as_sd_cli_reads_them():
    """(rows, columns), of a latent of 64 rows and 96 columns."""
    for tiling, larger, want in (
        (Tiling(), 1.0, (32, 32)),
        (Tiling(), vae_tiling.ENCODE_FACTOR, (41, 41)),
        (Tiling(), vae_tiling.ENCODE_FACTOR_NEWER, (64, 64)),
        (Tiling(20, 3), 1.0, (32, 20)),
        (Tiling(20, 100), 1.0, (64, 20)),
        (Tiling(relative_x=0.5, relative_y=0.33), 1.0, (21, 48)),
        (Tiling(relative_x=0.7, relative_y=0.7), 1.0, (45, 67)),
        (Tiling(8, 8, relative_x=3), 1.0, (8, 48)),
        (Tiling(overlap=0.0, relative_x=3, relative_y=2), 1.0, (32, 32)),
        (Tiling(relative_x=0.01), 1.0, (32, 4)),
    ):
        assert tiling.sizes(64, 96, larger) == want, tiling
    assert Tiling().sizes(2, 20) == (4, 20)
    assert [Tiling(overlap=overlap).target() for overlap in (-1, 0.3, 7)] == [0, 0.3, 0.5]


def test_an_axis_wraps_inside_the_tiles_or_between_them():
    """A latent of 20 rows and 40 columns in tiles of 32: one row of tiles, two columns."""
    both = CircularAxes(True, True)
    assert Tiling().circular(both, 20, 40) == (CircularAxes(y=True), CircularAxes(x=True))
    assert Tiling().circular(CircularAxes(y=True), 20, 40) == (CircularAxes(y=True), CircularAxes())
    assert Tiling(64, 8).circular(both, 20, 40) == (CircularAxes(x=True), CircularAxes(y=True))
