"""What a wrong picture of tiles shows: the tile that is wrong by itself, or the weights that join two tiles."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from refsd.models.vae.tiling import Run
from refsd.stages.stage import Params, StageInputs, Tensors

# Weights that differ by more are another rule's.
_EXACT = 1e-3
# Pixels, at the most, by which the tile before is read elsewhere.
_FAR = 16


def decoder(params: Params) -> Run:
    """Subtract each channel's mean over the tile, and enlarge `up` times or shrink: overlapping tiles differ.

    To encode, each `down` x `down` pixels become their mean.
    """
    up, down = params["up"], params["down"]

    def decode(z: np.ndarray) -> np.ndarray:
        y = z - z.mean(axis=(2, 3), keepdims=True, dtype=z.dtype)
        if down > 1:
            N, C, (H, W) = *y.shape[:2], (n // down for n in y.shape[2:])
            y = y[:, :, : H * down, : W * down].reshape(N, C, H, down, W, down).mean(axis=(3, 5), dtype=z.dtype)
        return y.repeat(up, axis=2).repeat(up, axis=3)

    return decode


class _Seen(NamedTuple):
    """A picture of tiles. corners: row, column, height, width of each; decoded: its pixels; covers: how many tiles
    cover a pixel
    """

    picture: np.ndarray
    corners: list[tuple[int, ...]]
    decoded: list[np.ndarray]
    covers: np.ndarray
    up: int

    def place(self, tile: int) -> tuple[slice, slice]:
        row, column, high, wide = (n * self.up for n in self.corners[tile])
        return slice(row, row + high), slice(column, column + wide)

    def own(self, tile: int) -> np.ndarray:
        """Return which of a tile's pixels no other tile covers."""
        return self.covers[self.place(tile)] == 1

    def is_wrong(self, tile: int, y: np.ndarray, near: float) -> bool:
        """Return True if pixels that a tile alone covers are not `y`."""
        return bool(np.abs(self.picture[:, :, *self.place(tile)] - y)[:, :, self.own(tile)].max(initial=0) > near)

    def weights(self, axis: int, near: float) -> Iterator[tuple[np.ndarray, float, int]]:
        """Yield the weights of two tiles that are neighbours along an axis, at each place that only they share.

        Of one place the pixels of all channels and items make two numbers certain.
        -> (weights, largest error, how much farther on the tile before is read than it lies)
        """
        for b, corner in enumerate(self.corners):
            a = next((a for a in range(b) if _follows(self.corners[a], corner, axis)), None)
            if a is None:
                continue
            area = np.zeros(self.covers.shape, bool)
            area[self.place(a)] = True
            inside = np.zeros_like(area)
            inside[self.place(b)] = True
            for i in range(self.covers.shape[axis]):
                at = (area & inside & (self.covers == 2) & (np.indices(area.shape)[axis] == i)).nonzero()
                if at[0].size == 0:
                    continue
                found, fits = self.picture[:, :, at[0], at[1]].ravel(), []
                place, length = i - self.corners[a][axis] * self.up, self.decoded[a].shape[2 + axis]
                for by in sorted(range(-min(place, _FAR), min(length - place, _FAR)), key=abs):
                    tiles = np.stack([self._at(a, at, axis, by), self._at(b, at)], axis=1)
                    weights = np.linalg.lstsq(tiles, found, rcond=None)[0]
                    fits.append((weights, float(np.abs(tiles @ weights - found).max()), by))
                    if fits[-1][1] <= near:
                        break
                yield fits[-1] if fits[-1][1] <= near else fits[0]

    def _at(self, tile: int, at: tuple[np.ndarray, ...], axis: int = 0, by: int = 0) -> np.ndarray:
        row, column = (n * self.up for n in self.corners[tile][:2])
        return self.decoded[tile][:, :, at[0] - row + by * (axis == 0), at[1] - column + by * axis].ravel()


def _follows(a: Sequence[int], b: Sequence[int], axis: int) -> bool:
    """Return True if tile b is the next of tile a along an axis, and shares some of it."""
    return a[1 - axis] == b[1 - axis] and a[axis] < b[axis] < a[axis] + a[2 + axis]


def blames(inputs: StageInputs, actual: Tensors, truth: Tensors, bounds: Mapping[str, float]) -> list[str]:
    """Say which tile is wrong by itself, or else with which weights two tiles are joined."""
    z, p = inputs.tensors["z"].astype(np.float64), inputs.params
    if not np.array_equal(actual["tiles"], truth["tiles"]):
        return _other_corners(actual["tiles"], truth["tiles"])
    picture = np.asarray(actual["picture"], np.float64)
    if (
        p["wraps"]
        or p["down"] > 1
        or picture.shape[2:] != tuple(p["up"] * n for n in z.shape[2:])
        or not np.isfinite(picture).all()
    ):
        return []
    corners = [tuple(map(int, corner)) for corner in truth["tiles"]]
    decoded = [decoder(p)(z[:, :, i : i + h, j : j + w]) for i, j, h, w in corners]
    seen = _Seen(picture, corners, decoded, np.zeros(picture.shape[2:], int), p["up"])
    for tile in range(len(corners)):
        seen.covers[seen.place(tile)] += 1
    near = 4 * bounds["picture"]
    phrases: dict[str, list[str]] = {}
    for tile in range(len(corners)):
        if seen.is_wrong(tile, seen.decoded[tile], near):
            phrases.setdefault(_of_one(seen, tile, z, p, near), []).append(str(tile))
    if not phrases:
        joined = _weights(seen, seen._replace(picture=truth["picture"]), near)
        elsewhere = np.abs(picture - truth["picture"])[:, :, seen.covers <= 2].max(initial=0) > bounds["picture"]
        return joined or ([] if elsewhere else ["the picture is wrong only where more than two tiles meet"])
    named = [(phrase, tiles) for phrase, tiles in phrases.items() if phrase]
    return [f"tile{'s' * (len(tiles) > 1)} {', '.join(tiles)}: {phrase}" for phrase, tiles in named]


def _other_corners(actual: np.ndarray, right: np.ndarray) -> list[str]:
    if actual.shape != right.shape:
        return []
    phrases = []
    for column, what in enumerate(("rows begin", "columns begin", "heights are", "widths are")):
        apart = actual[:, column] - right[:, column]
        if wrong := apart.nonzero()[0].tolist():
            by = [*dict.fromkeys(int(n) for n in apart if n)]
            first = f"tile {wrong[0]} has {actual[wrong[0], column]:g} for {right[wrong[0], column]:g}"
            same = f"{abs(by[0])} {'too small' if by[0] < 0 else 'too large'}" if len(by) == 1 else "wrong"
            phrases.append(
                f"the tiles' {what} {same} from tile {wrong[0]} on: {first}".replace("begin wrong", "are wrong")
            )
    return phrases


def _of_one(seen: _Seen, tile: int, z: np.ndarray, p: Params, near: float) -> str:
    """Return what stands where no other tile does; "" if nothing here explains it."""
    own, y = seen.own(tile), seen.decoded[tile]
    actual = seen.picture[:, :, *seen.place(tile)]
    row, column, high, wide = seen.corners[tile]
    for down, right in itertools.product(range(-2, 3), repeat=2):
        i, j = row + down, column + right
        inside = 0 <= i <= z.shape[2] - high and 0 <= j <= z.shape[3] - wide
        if inside and not seen.is_wrong(tile, decoder(p)(z[:, :, i : i + high, j : j + wide]), near):
            return f"cut from the latent {_way(down, right)}"
    most = 2 * seen.up
    for down, right in itertools.product(range(-most, most + 1), repeat=2):
        inside = own.copy()
        inside[: max(down, 0)], inside[:, : max(right, 0)] = False, False
        inside[len(inside) + min(down, 0) :], inside[:, inside.shape[1] + min(right, 0) :] = False, False
        shifted = np.roll(y, (down, right), (2, 3))
        if (
            (down or right)
            and inside.sum() > own.sum() / 2
            and np.abs(actual - shifted)[:, :, inside].max() <= near
        ):
            return f"put into the picture {_way(down, right)}"
    # Of each pixel the items and channels make a factor certain.
    factor = (actual * y).sum((0, 1)) / np.maximum((y * y).sum((0, 1)), np.finfo(np.float64).tiny)
    if not seen.is_wrong(tile, factor * y, near):
        low, high_ = factor[own].min(), factor[own].max()
        return (
            f"weighed {low:.4g} to {high_:.4g} where no other tile is, not 1"
            if high_ - low > _EXACT
            else f"multiplied by {low:.4g}"
        )
    if tile and seen.decoded[tile - 1].shape == y.shape:
        terms = np.stack([one[:, :, own].ravel() for one in (y, seen.decoded[tile - 1])], axis=1)
        times, before = np.linalg.lstsq(terms, actual[:, :, own].ravel(), rcond=None)[0]
        if not seen.is_wrong(tile, times * y + before * seen.decoded[tile - 1], near):
            return (
                f"multiplied by {times:.4g}, and the tile before is added, multiplied by {before:.4g}: "
                "a buffer that is not cleared"
            )
    return _other_mean(seen, tile, z, p, near)


def _other_mean(seen: _Seen, tile: int, z: np.ndarray, p: Params, near: float) -> str:
    """Recognise a small last tile that was decoded with more than its pixels: another mean was taken off."""
    row, column, high, wide = seen.corners[tile]
    cut = z[:, :, row : row + high, column : column + wide]
    apart = (seen.picture[:, :, *seen.place(tile)] - seen.decoded[tile])[:, :, seen.own(tile)]
    if (high, wide) == seen.corners[0][2:] or np.ptp(apart, axis=2).max() > 2 * near or np.ptp(apart) <= 2 * near:
        return ""
    mean = cut.mean((2, 3)) - apart.mean(2)
    whole, (i, j, h, w) = p["size"][0] ** 2, seen.corners[max(tile - 1, 0)]
    if np.abs(mean - cut.sum((2, 3)) / whole).max() <= near:
        return "padded with zeros to a whole tile, and decoded so"
    left = z[:, :, i : i + h, j : j + w].copy()
    left[:, :, :high, :wide] = cut[:, :, : left.shape[2], : left.shape[3]]
    if left.shape[2:] == (p["size"][0],) * 2 and np.abs(mean - left.mean((2, 3))).max() <= near:
        return "decoded in a buffer that still holds the tile before"
    return "decoded with other pixels beside its own: their mean is another"


def _way(down: int, right: int) -> str:
    ways = [
        (abs(down), "rows", "up" if down < 0 else "down"),
        (abs(right), "columns", "to the left" if right < 0 else "to the right"),
    ]
    return " and ".join(f"{n} {what if n > 1 else what[:-1]} too far {where}" for n, what, where in ways if n)


def _weights(seen: _Seen, right: _Seen, near: float) -> list[str]:
    phrases = []
    for axis, what in enumerate(("rows", "columns")):
        measured, usual = [*seen.weights(axis, near)], [*right.weights(axis, near)]
        if not measured:
            continue
        if max(error for _, error, _ in measured) > near:
            phrases.append(f"where two tiles share {what}, the picture is no weighted sum of them")
            continue
        moved = [(by, own) for (w, _, by), (_, _, own) in zip(measured, usual, strict=True) if by != own and w[0]]
        if moved:
            by, own = max(moved, key=lambda pair: abs(pair[0] - pair[1]))
            phrases.append(f"along shared {what} the tile before is read {by:+} {what} from its place, not {own:+}")
            continue
        sums = [float(w.sum()) for w, *_ in measured]
        if max(abs(total - 1) for total in sums) > _EXACT:
            extent = f"{min(sums):.4g} to {max(sums):.4g}" if max(sums) - min(sums) > _EXACT else f"{sums[0]:.4g}"
            phrases.append(f"along shared {what} the weights of two tiles add up to {extent}, not to 1")
            continue
        own, theirs = ([float(w[1]) for w, *_ in some] for some in (measured, usual))
        wrong = [i for i, (x, y) in enumerate(zip(own, theirs, strict=True)) if abs(x - y) > _EXACT]
        if wrong:
            some = wrong[:4]
            shown, expected = (", ".join(f"{abs(round(w[i], 4)):.4g}" for i in some) for w in (own, theirs))
            phrases.append(f"along shared {what} the ramp is another: the later tile weighs {shown} for {expected}")
    return phrases
