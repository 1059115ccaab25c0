"""Decode a latent, or encode a picture, tile by tile: where the tiles lie, and how they are blended."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.circular import CircularAxes
from refsd.golden.recipe import Recipe
from refsd.models.vae.tiling import Run, Tile, places, shared, smootherstep, tiled_diffusers, tiled_sdcpp
from refsd.stages.seen_tiles import blames, decoder
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, case, param, part

# run, z, params -> picture
Tiled = Callable[[Run, np.ndarray, Params], np.ndarray]


def _sdcpp(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
    wraps = CircularAxes(x="x" in p["wraps"], y="y" in p["wraps"]) if p["wraps"] else None
    return tiled_sdcpp(run, z, (p["size"][0], p["size"][1]), p["overlap"], p["up"], p["down"], wraps)


def _diffusers(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
    return tiled_diffusers(run, z, p["size"][0] * p["down"], p["size"][0] * p["up"], p["overlap"])


_ENGINES: dict[str, Tiled] = {"sdcpp": _sdcpp, "diffusers": _diffusers}


class TilesRule(NamedTuple):
    """The rule. tiled: engine -> function that cuts, decodes and blends the tiles"""

    tiled: Callable[[str], Tiled] = lambda engine: _ENGINES[engine]


RULE = TilesRule()


def _run(rule: TilesRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    z, p = inputs.tensors["z"], inputs.params
    decode, tiled = decoder(p), rule.tiled(p["engine"])
    index = np.arange(z.shape[2] * z.shape[3], dtype=np.float64).reshape(1, 1, *z.shape[2:])
    corners: list[tuple[int, ...]] = []

    def note(tile: np.ndarray) -> np.ndarray:
        corners.append((*divmod(int(tile[0, 0, 0, 0]), z.shape[3]), *tile.shape[2:]))
        return decode(tile)

    tiled(note, index, p)
    return {"tiles": np.array(corners), "picture": tiled(decode, z, p)}


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    return np.full(truth.shape, 8 * np.abs(inputs.tensors["z"]).max())


# --- what engines got wrong --------------------------------------------------------------------------------------


class _Summed(NamedTuple):
    """How tiles are placed, weighed and added up: stable-diffusion.cpp's, and what may be wrong.

    ramp:    0..1 along the shared pixels -> weight
    share:   (place along a ramp, its length) -> 0..1
    length:  (shared latent pixels, up) -> length of a ramp in the picture
    axes:    (rows, columns): True if tiles fade; where they don't, the later tile wins
    fades:   True if a tile fades (in at its beginning, out at its end)
    shared:  (length of the latent, of a tile, overlap) -> latent pixels that tiles share
    places:  (length of the latent, of a tile, shared) -> tiles of an axis
    skipped: (latent pixels that the tile before covers, up) -> pixels of the picture that are left out
    again:   True if a tile's result is added to that of the tile before, in a buffer that is not cleared
    """

    ramp: Callable[[np.ndarray], np.ndarray] = smootherstep
    share: Callable[[np.ndarray, int], np.ndarray] = lambda i, n: i / n
    length: Callable[[int, int], int] = lambda shared, up: shared * up
    axes: tuple[bool, bool] = (True, True)
    fades: tuple[bool, bool] = (True, True)
    shared: Callable[[int, int, float], int] = shared
    places: Callable[[int, int, int], list[Tile]] = places
    skipped: Callable[[int, int], int] = lambda skip, up: skip * up
    again: bool = False


def _summed(**wrong) -> Callable:
    how = _Summed(**wrong)

    def tiled(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
        if p["wraps"] or p["down"] > 1:
            raise NoDifference
        up, lengths = p["up"], z.shape[2:]
        size = [min(n, length) for n, length in zip(p["size"], lengths, strict=True)]
        share = [how.shared(length, n, p["overlap"]) for length, n in zip(lengths, p["size"], strict=True)]
        grid = [how.places(*axis) for axis in zip(lengths, size, share, strict=True)]
        out, before = np.zeros((*z.shape[:2], *(up * n for n in lengths)), z.dtype), 0.0
        for row in grid[0]:
            for column in grid[1]:
                y = run(z[:, :, row.start : row.start + size[0], column.start : column.start + size[1]])
                if how.again:
                    y = before = y + before
                skip = [how.skipped(tile.skip, up) for tile in (row, column)]
                weights = []
                for tile, own, smooth, left, n, length, whole in zip(
                    (row, column), share, how.axes, skip, y.shape[2:], lengths, size, strict=True
                ):
                    i = np.arange(left, n)
                    t, over = np.ones(len(i)), how.length(own, up)
                    if smooth and over and tile.start > 0 and how.fades[0]:
                        t = np.minimum(t, how.share(i - left, over))
                    if smooth and over and tile.start < length - whole and how.fades[1]:
                        t = np.minimum(t, how.share(n - i, over))
                    weights.append(how.ramp(t.clip(0, 1)))
                y = y[:, :, skip[0] :, skip[1] :]
                top, left = (tile.start * up + n for tile, n in zip((row, column), skip, strict=True))
                place = np.s_[:, :, top : top + y.shape[2], left : left + y.shape[3]]
                w = (weights[0][:, None] * weights[1]).astype(z.dtype)
                hard = [not smooth and tile.start > 0 for smooth, tile in zip(how.axes, (row, column), strict=True)]
                out[place] = y * w if any(hard) else out[place] + y * w
        return out

    return lambda engine: tiled if engine == "sdcpp" else _not_asked


def _moved(by: int) -> Callable[[int, int, int], list[Tile]]:
    """Begin every tile but the first and the last `by` pixels later."""

    def changed(length: int, size: int, share: int) -> list[Tile]:
        first, *between, last = places(length, size, share)
        return [first, *(tile._replace(start=tile.start + by) for tile in between), last]

    return changed


def _unmoved(length: int, size: int, share: int) -> list[Tile]:
    """Let the last tile begin a step behind the one before, and reach over the end."""
    return [Tile(start, 0) for start in range(0, length - share, size - share)]


def _moved_back(length: int, size: int, share: int) -> list[Tile]:
    """Let the last tile end at the end, and share more with the one before than weights know."""
    return [*(Tile(start, 0) for start in range(0, length - size, size - share)), Tile(length - size, 0)]


def _side_by_side(length: int, size: int, share: int) -> list[Tile]:
    """Place tiles as if they shared nothing."""
    return [*(Tile(start, 0) for start in range(0, length - size, size)), places(length, size, 0)[-1]]


class _Blended(NamedTuple):
    """How a tile is blended with the finished ones above and to its left: diffusers', and what may be wrong.

    axes:     (upwards, to the left): True if it is
    share:    (place along a ramp, its length) -> the tile's own share, 0..1
    weights:  own share -> factors of the tile before and of the tile
    length:   (pixels that tiles share in the result, up / down) -> length of a ramp
    step:     (size, share) -> pixels from tile to tile
    kept:     (pixels of a tile, that tiles share, up / down) -> pixels of a tile in the result
    clamped:  False if a small last tile has the ramp of a whole one
    finished: False to blend with neighbours as they were decoded
    again:    True if a small last tile is decoded in the buffer of the tile before, which is not cleared
    """

    axes: tuple[bool, bool] = (True, True)
    share: Callable[[np.ndarray, int], np.ndarray] = lambda i, n: i / n
    weights: Callable = lambda w: (1 - w, w)
    length: Callable[[int, float], int] = lambda shared, scale: shared
    step: Callable[[int, float], int] = lambda size, overlap: int(size * (1 - overlap))
    kept: Callable[[int, int, float], int] = lambda out, shared, scale: out - shared
    clamped: bool = True
    finished: bool = True
    again: bool = False


def _blended(**wrong) -> Callable:
    how = _Blended(**wrong)

    def tiled(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
        size, out = (p["size"][0] * p[scale] for scale in ("down", "up"))
        scale, step = p["up"] / p["down"], how.step(size, p["overlap"])
        blend = how.length(int(out * p["overlap"]), scale)
        buffer = np.zeros((*z.shape[:2], size, size), z.dtype)

        def cut(i: int, j: int) -> np.ndarray:
            tile = z[:, :, i : i + size, j : j + size]
            buffer[:, :, : tile.shape[2], : tile.shape[3]] = tile
            return buffer if how.again else tile

        tiles = [[run(cut(i, j)).copy() for j in range(0, z.shape[3], step)] for i in range(0, z.shape[2], step)]
        others = tiles if how.finished else [[tile.copy() for tile in row] for row in tiles]
        for i, row in enumerate(tiles):
            for j, tile in enumerate(row):
                for on, before, axis in (
                    (how.axes[0] and i > 0, (i - 1, j), 2),
                    (how.axes[1] and j > 0, (i, j - 1), 3),
                ):
                    if on:
                        _ramp_into(others[before[0]][before[1]], tile, blend, axis, how)
        kept = how.kept(out, int(out * p["overlap"]), scale)
        picture = np.concatenate(
            [np.concatenate([tile[:, :, :kept, :kept] for tile in row], axis=3) for row in tiles], axis=2
        )
        # Of a picture that is too large the part stays that the right one has.
        own, step = out - int(out * p["overlap"]), int(size * (1 - p["overlap"]))
        high, wide = (sum(min(own, int((n - k) * scale)) for k in range(0, n, step)) for n in z.shape[2:])
        return picture[:, :, :high, :wide]

    return lambda engine: tiled if engine == "diffusers" else _not_asked


def _ramp_into(before: np.ndarray, tile: np.ndarray, blend: int, axis: int, how: _Blended) -> None:
    n = min(before.shape[axis], tile.shape[axis], blend)
    last = np.moveaxis(before, axis, -1)
    first = np.moveaxis(tile, axis, -1)[..., :n]
    last = last[..., -n:] if how.clamped else last[..., -blend:][..., :n]
    if not n or last.shape[-1] != n:
        return
    of_before, own = how.weights(how.share(np.arange(n), n if how.clamped else blend))
    first[...] = last * np.asarray(of_before, tile.dtype) + first * np.asarray(own, tile.dtype)


def _not_asked(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
    raise NoDifference


def _of_some(axis: int) -> Callable:
    """Decode only the first index of an axis; the rest is 0."""

    def changed(engine: str) -> Tiled:
        def tiled(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
            y = _ENGINES[engine](run, z, p).copy()
            np.moveaxis(y, axis, 0)[1:] = 0
            return y

        return tiled

    return changed


def _decoded(kept: Callable[[bool, bool], bool]) -> Callable:
    """Decode some tiles; the others are black. kept: (in the last row of tiles, in the last column) -> decoded"""

    def changed(engine: str) -> Tiled:
        def tiled(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
            corners, index = [], np.arange(z.shape[2] * z.shape[3], dtype=float).reshape(1, 1, *z.shape[2:])

            def note(tile: np.ndarray) -> np.ndarray:
                corners.append(divmod(int(tile[0, 0, 0, 0]), z.shape[3]))
                return decoder(p)(tile)

            _ENGINES[engine](note, index, p)
            calls, (row, column) = iter(corners), map(max, zip(*corners, strict=True))

            def some(tile: np.ndarray) -> np.ndarray:
                y, (i, j) = run(tile), next(calls)
                return y if kept(i == row, j == column) else np.zeros_like(y)

            return _ENGINES[engine](some, z, p)

        return tiled

    return changed


def _whole(engine: str) -> Tiled:
    return lambda run, z, p: run(z)


_LATER = {
    "counted from 1": lambda i, n: (i + 1) / n,
    "counted from 1, up to n + 1": lambda i, n: (i + 1) / (n + 1),
    "counted to n - 1": lambda i, n: i / max(n - 1, 1),
    "counted from 1/2": lambda i, n: (i + 0.5) / n,
}
_OF_SUMS = (
    part("ramps in a straight line", tiled=_summed(ramp=lambda t: t)),
    part("ramps of 3 t^2 - 2 t^3", tiled=_summed(ramp=lambda t: t * t * (3 - 2 * t))),
    part("ramps along the rows alone", tiled=_summed(axes=(False, True))),
    part("ramps along the columns alone", tiled=_summed(axes=(True, False))),
    part("no ramps, the later tile wins", tiled=_summed(axes=(False, False))),
    part("no ramps, tiles are added up", tiled=_summed(fades=(False, False))),
    part("tiles fade in and not out, so that weights add up to more than 1", tiled=_summed(fades=(True, False))),
    part("tiles fade out and not in, so that weights add up to more than 1", tiled=_summed(fades=(False, True))),
    part("ramps as long as the latent's overlap, not the picture's", tiled=_summed(length=lambda n, up: n)),
    part("ramps half as long", tiled=_summed(length=lambda n, up: n * up // 2)),
    part("ramps twice as long", tiled=_summed(length=lambda n, up: 2 * n * up)),
    *(part(f"places along a ramp {how}", tiled=_summed(share=share)) for how, share in _LATER.items()),
    part("the last tile skips nothing of what the one before covers", tiled=_summed(skipped=lambda n, up: 0)),
    part("what the last tile skips is counted in latent pixels", tiled=_summed(skipped=lambda n, up: n)),
    part("the last tile skips a pixel less", tiled=_summed(skipped=lambda n, up: max(n * up - 1, 0))),
    part("the last tile skips a pixel more", tiled=_summed(skipped=lambda n, up: n * up + 1 if n else 0)),
    part("the last tile is not moved back to the end", tiled=_summed(places=_unmoved)),
    part(
        "tiles lie as far apart as the overlap says, not evenly, and the last is moved back",
        tiled=_summed(shared=lambda length, size, overlap: int(size * overlap), places=_moved_back),
    ),
    part("tiles begin a pixel later", tiled=_summed(places=_moved(1))),
    part("tiles begin a pixel earlier", tiled=_summed(places=_moved(-1))),
    part("tiles stand side by side, though they fade", tiled=_summed(places=_side_by_side)),
    part("a tile's buffer is not cleared: the tile before is added", tiled=_summed(again=True)),
)
_OF_MIXTURES = (
    part("mixed to the left alone", tiled=_blended(axes=(False, True))),
    part("mixed upwards alone", tiled=_blended(axes=(True, False))),
    part("mixed with neighbours as they were decoded, not as they were mixed", tiled=_blended(finished=False)),
    part("not mixed", tiled=_blended(axes=(False, False))),
    part("a small last tile under a whole one's ramp", tiled=_blended(clamped=False)),
    part("a small last tile in the buffer of the tile before, not cleared", tiled=_blended(again=True)),
    *(part(f"places along a mixture {how}", tiled=_blended(share=share)) for how, share in _LATER.items()),
    part("mixed half and half", tiled=_blended(weights=lambda w: (0 * w + 0.5, 0 * w + 0.5))),
    part("mixed the other way round", tiled=_blended(weights=lambda w: (w, 1 - w))),
    part("the tile before fades, the tile does not", tiled=_blended(weights=lambda w: (1 - w, 0 * w + 1))),
    part("the tile fades in, the one before does not fade", tiled=_blended(weights=lambda w: (0 * w + 1, w))),
    part("the overlap taken for the step", tiled=_blended(step=lambda size, share: max(int(size * share), 1))),
    part("tiles stand side by side, though they are mixed", tiled=_blended(step=lambda size, share: size)),
    part("tiles begin a pixel later", tiled=_blended(step=lambda size, share: int(size * (1 - share)) + 1)),
    part("tiles begin a pixel earlier", tiled=_blended(step=lambda size, share: int(size * (1 - share)) - 1)),
    part("what is kept of a tile is whole", tiled=_blended(kept=lambda out, shared, up: out)),
    part("what is kept of a tile is a pixel less", tiled=_blended(kept=lambda out, shared, up: out - shared - 1)),
)
_OF_ALL = (
    part("only the first channel tiled", tiled=_of_some(1)),
    part("only the first item tiled", tiled=_of_some(0)),
    param("no overlap", overlap=0.0),
    param("an overlap of half", overlap=0.5),
    param("tiles one larger", size=lambda size: [n + 1 for n in size]),
    param("rows and columns of a tile swapped", size=lambda size: size[::-1]),
    part(
        "tiles as the other engine's",
        tiled=lambda engine: _ENGINES["sdcpp" if engine == "diffusers" else "diffusers"],
    ),
)
_DECODED = (
    part("only the last row and column of tiles decoded", tiled=_decoded(lambda row, column: row or column)),
    part("only the last row of tiles decoded", tiled=_decoded(lambda row, column: row)),
    part("only the last column of tiles decoded", tiled=_decoded(lambda row, column: column)),
    part("only the last tile decoded", tiled=_decoded(lambda row, column: row and column)),
    part("the last row of tiles not decoded", tiled=_decoded(lambda row, column: not row)),
    part("the last column of tiles not decoded", tiled=_decoded(lambda row, column: not column)),
    part("the last row and column of tiles not decoded", tiled=_decoded(lambda row, column: not (row or column))),
    part("decoded whole", tiled=_whole),
    part("mixed over the latent's overlap, not the picture's", tiled=_blended(length=lambda n, up: int(n / up))),
    param("edges do not meet", wraps=""),
    param("the other edges meet", wraps=lambda wraps: {"x": "y", "y": "x"}.get(wraps, wraps)),
)


_ENCODED = (
    part("encoded whole", tiled=_whole),
    part(
        "mixed over the picture's overlap, not the latent's", tiled=_blended(length=lambda n, scale: int(n / scale))
    ),
)


def _case(label: str, engine: str, shape: tuple[int, int, int, int], size: list[int], overlap: float, **params):
    z = {"z": Recipe(shape, offset=0.5)}
    stage = "encoded_tiles" if "down" in params else "tiles"
    return case(stage, label, z, engine=engine, size=size, overlap=overlap, **params)


TILES = Stage(
    "tiles",
    "A latent decoded tile by tile, by a decoder that is a formula: each tile less its channels' means, "
    "repeated up x up.",
    inputs={"z": "[N, C, H, W]"},
    params={"engine": REQUIRED, "size": REQUIRED, "overlap": REQUIRED, "up": 3, "down": 1, "wraps": ""},
    outputs={
        "tiles": Output(("tile", "row, column, height, width")),
        "picture": Output(("item", "channel", "row", "column"), _size, 200),
    },
    rule=RULE,
    choices={"engine": _ENGINES},
    run=_run,
    known=(*_OF_SUMS, *_OF_MIXTURES, *_OF_ALL, *_DECODED),
    blames=blames,
    cases=(
        _case("sdcpp-odd", "sdcpp", (2, 3, 21, 34), [8, 12], 0.25),
        _case("sdcpp-half", "sdcpp", (1, 4, 16, 29), [8, 8], 0.5),
        _case("sdcpp-wraps", "sdcpp", (1, 2, 20, 24), [8, 8], 0.25, wraps="x"),
        _case("diffusers-odd", "diffusers", (2, 3, 19, 27), [8, 8], 0.25),
        _case("diffusers-small-last", "diffusers", (1, 3, 13, 19), [8, 8], 0.25),
        _case("diffusers-third", "diffusers", (1, 2, 23, 20), [9, 9], 0.34),
    ),
)
ENCODED_TILES = TILES._replace(
    name="encoded_tiles",
    what="A picture encoded tile by tile, by an encoder that is a formula: of each tile less its channels' means, "
    "down x down pixels become their mean; size is of a tile of the latent.",
    inputs={"z": "[N, C, H, W]: the picture"},
    params={**TILES.params, "up": 1, "down": REQUIRED},
    known=(*_OF_MIXTURES, *_OF_ALL, *_ENCODED),
    cases=(
        _case("sdcpp", "sdcpp", (1, 3, 63, 78), [8, 12], 0.25, down=3),
        _case("diffusers", "diffusers", (2, 3, 39, 57), [8, 8], 0.25, down=3),
    ),
)

STAGES = (TILES, ENCODED_TILES)
