"""Decode a latent tile by tile: where the tiles lie, and how they are blended."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.circular import CircularAxes
from refsd.golden.recipe import Recipe
from refsd.models.vae.tiling import Run, places, shared, smootherstep, tiled_diffusers, tiled_sdcpp
from refsd.numerics.errors import BadInput
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, case, param, part

# run, z, params -> picture
Tiled = Callable[[Run, np.ndarray, Params], np.ndarray]


class TilesRule(NamedTuple):
    """The rule. tiled: engine -> function that cuts, decodes and blends the tiles"""

    tiled: Callable[[str], Tiled]


def _decoder(params: Params) -> Run:
    """Subtract each channel's mean over the tile, and enlarge `up` times: overlapping tiles differ."""
    up = params["up"]

    def decode(z: np.ndarray) -> np.ndarray:
        y = z - z.mean(axis=(2, 3), keepdims=True, dtype=z.dtype)
        return y.repeat(up, axis=2).repeat(up, axis=3)

    return decode


def _sdcpp(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
    wraps = CircularAxes(x="x" in p["wraps"], y="y" in p["wraps"]) if p["wraps"] else None
    return tiled_sdcpp(run, z, (p["size"][0], p["size"][1]), p["overlap"], up=p["up"], wraps=wraps)


def _diffusers(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
    return tiled_diffusers(run, z, p["size"][0], p["size"][0] * p["up"], p["overlap"])


_ENGINES: dict[str, Tiled] = {"sdcpp": _sdcpp, "diffusers": _diffusers}
RULE = TilesRule(tiled=lambda engine: _ENGINES[engine])


def _run(rule: TilesRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    z, p = inputs.tensors["z"], inputs.params
    if p["engine"] not in _ENGINES:
        raise BadInput(f"stage/tiles: engine {p['engine']!r}: expected one of {', '.join(_ENGINES)}")
    decode, tiled = _decoder(p), rule.tiled(p["engine"])
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


def _weighed(ramp: Callable[[np.ndarray], np.ndarray], axes: tuple[bool, bool] = (True, True)) -> Callable:
    """stable-diffusion.cpp's tiles with another ramp, or blended along one axis; on the other the last wins."""

    def tiled(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
        if p["wraps"]:
            raise NoDifference
        up, lengths = p["up"], z.shape[2:]
        size = [min(n, length) for n, length in zip(p["size"], lengths, strict=True)]
        share = [shared(length, n, p["overlap"]) for length, n in zip(lengths, p["size"], strict=True)]
        grid = [places(*axis) for axis in zip(lengths, size, share, strict=True)]
        out = np.zeros((*z.shape[:2], *(up * n for n in lengths)), z.dtype)
        for row in grid[0]:
            for column in grid[1]:
                y = run(z[:, :, row.start : row.start + size[0], column.start : column.start + size[1]])
                weights = []
                for tile, n, length, own, smooth in zip((row, column), size, lengths, share, axes, strict=True):
                    i = np.arange(tile.skip * up, n * up)
                    t = np.ones(len(i))
                    if smooth and own and tile.start > 0:
                        t = np.minimum(t, (i - tile.skip * up) / (own * up))
                    if smooth and own and tile.start < length - n:
                        t = np.minimum(t, (n * up - i) / (own * up))
                    weights.append(ramp(t))
                y = y[:, :, row.skip * up :, column.skip * up :]
                top, left = (row.start + row.skip) * up, (column.start + column.skip) * up
                place = np.s_[:, :, top : top + y.shape[2], left : left + y.shape[3]]
                w = (weights[0][:, None] * weights[1]).astype(z.dtype)
                hard = [not smooth and tile.start > 0 for smooth, tile in zip(axes, (row, column), strict=True)]
                out[place] = y * w if any(hard) else out[place] + y * w
        return out

    return lambda engine: tiled if engine == "sdcpp" else _not_asked


def _mixed(rows: bool = True, columns: bool = True, clamped: bool = True, finished: bool = True) -> Callable:
    """diffusers' tiles blended along some axes; not `clamped`, a small last tile has the ramp of a full one.

    finished: False to blend with neighbours as they were decoded, before they were blended themselves
    """

    def tiled(run: Run, z: np.ndarray, p: Params) -> np.ndarray:
        size, out = p["size"][0], p["size"][0] * p["up"]
        step, blend = int(size * (1 - p["overlap"])), int(out * p["overlap"])
        tiles = [
            [run(z[:, :, i : i + size, j : j + size]).copy() for j in range(0, z.shape[3], step)]
            for i in range(0, z.shape[2], step)
        ]
        others = tiles if finished else [[tile.copy() for tile in row] for row in tiles]
        for i, row in enumerate(tiles):
            for j, tile in enumerate(row):
                for on, before, axis in ((rows and i > 0, (i - 1, j), 2), (columns and j > 0, (i, j - 1), 3)):
                    if on:
                        _ramp_into(others[before[0]][before[1]], tile, blend, axis, clamped)
        kept = out - blend
        return np.concatenate(
            [np.concatenate([tile[:, :, :kept, :kept] for tile in row], axis=3) for row in tiles], axis=2
        )

    return lambda engine: tiled if engine == "diffusers" else _not_asked


def _ramp_into(before: np.ndarray, tile: np.ndarray, blend: int, axis: int, clamped: bool) -> None:
    n = min(before.shape[axis], tile.shape[axis], blend)
    last = np.moveaxis(before, axis, -1)
    first = np.moveaxis(tile, axis, -1)[..., :n]
    last = last[..., -n:] if clamped else last[..., -blend:][..., :n]
    if not n or last.shape[-1] != n:
        return
    w = (np.arange(n) / (n if clamped else blend)).astype(tile.dtype)
    first[...] = last * (1 - w) + first * w


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


def _whole(engine: str) -> Tiled:
    return lambda run, z, p: run(z)


_KNOWN = (
    part("ramps in a straight line", tiled=_weighed(lambda t: t)),
    part("ramps of 3 t^2 - 2 t^3", tiled=_weighed(lambda t: t * t * (3 - 2 * t))),
    part("ramps along the rows alone", tiled=_weighed(smootherstep, (False, True))),
    part("ramps along the columns alone", tiled=_weighed(smootherstep, (True, False))),
    part("no ramps, the later tile wins", tiled=_weighed(smootherstep, (False, False))),
    part("mixed to the left alone", tiled=_mixed(rows=False)),
    part("mixed upwards alone", tiled=_mixed(columns=False)),
    part("mixed with neighbours as they were decoded, not as they were mixed", tiled=_mixed(finished=False)),
    part("not mixed", tiled=_mixed(rows=False, columns=False)),
    part("a small last tile under a whole one's ramp", tiled=_mixed(clamped=False)),
    part("only the first channel tiled", tiled=_of_some(1)),
    part("only the first item tiled", tiled=_of_some(0)),
    part("decoded whole", tiled=_whole),
    part(
        "tiles as the other engine's",
        tiled=lambda engine: _ENGINES["sdcpp" if engine == "diffusers" else "diffusers"],
    ),
    param("no overlap", overlap=0.0),
    param("an overlap of half", overlap=0.5),
    param("tiles one larger", size=lambda size: [n + 1 for n in size]),
    param("rows and columns of a tile swapped", size=lambda size: size[::-1]),
    param("edges do not meet", wraps=""),
    param("the other edges meet", wraps=lambda wraps: {"x": "y", "y": "x"}.get(wraps, wraps)),
)


def _case(label: str, engine: str, shape: tuple[int, int, int, int], size: list[int], overlap: float, **params):
    z = {"z": Recipe(shape, offset=0.5)}
    return case("tiles", label, z, engine=engine, size=size, overlap=overlap, **params)


STAGES = (
    Stage(
        "tiles",
        "A latent decoded tile by tile, by a decoder that is a formula: each tile less its channels' means, "
        "repeated up x up.",
        inputs={"z": "[N, C, H, W]"},
        params={"engine": REQUIRED, "size": REQUIRED, "overlap": REQUIRED, "up": 3, "wraps": ""},
        outputs={
            "tiles": Output(("tile", "row, column, height, width")),
            "picture": Output(("item", "channel", "row", "column"), _size, 200),
        },
        rule=RULE,
        run=_run,
        known=_KNOWN,
        cases=(
            _case("sdcpp-odd", "sdcpp", (2, 3, 21, 34), [8, 12], 0.25),
            _case("sdcpp-half", "sdcpp", (1, 4, 16, 29), [8, 8], 0.5),
            _case("sdcpp-wraps", "sdcpp", (1, 2, 20, 24), [8, 8], 0.25, wraps="x"),
            _case("diffusers-odd", "diffusers", (2, 3, 19, 27), [8, 8], 0.25),
            _case("diffusers-small-last", "diffusers", (1, 3, 13, 19), [8, 8], 0.25),
            _case("diffusers-third", "diffusers", (1, 2, 23, 20), [9, 9], 0.34),
        ),
    ),
)
