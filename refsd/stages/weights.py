"""From a stored tensor to a network's weight: order of dimensions, scales, joined rows, added tokens."""

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.networks.keymap import CONCAT, POINTWISE, SAME, SWAP
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import GROUPED_TYPES, stored
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, Tensors, param, part
from refsd.stages.weight_cases import CASES, NESTED, PARTS, SCALES

_JOINS = {"same": SAME, "rows": CONCAT, "pointwise": POINTWISE, "shift and scale": SWAP}
_FOUR_BITS, _BYTES = ("nf4", "fp4"), np.arange(256)


class Nested(NamedTuple):
    """Scales of 4-bit codes. scales, values: of these scales' own codes; None: they are stored as they are"""

    absmax: np.ndarray
    scales: np.ndarray | None
    values: np.ndarray | None


def _side(n: int, scales: int) -> int:
    """Return the side of blocks: a power of two if one gives so many scales."""
    return next((1 << i for i in range(n.bit_length() + 1) if -(-n >> i) == scales), n // scales)


def spread(scale: np.ndarray, shape: tuple[int, ...], side: Callable[[int, int], int] = _side) -> np.ndarray:
    """Repeat a scale of the whole tensor, of rows, of columns, or of blocks to the tensor's shape.

    side: numbers along an axis, scales along it -> numbers that share a scale; the last block may have fewer
    """
    for axis in range(scale.ndim):
        n = shape[axis]
        scale = np.repeat(scale, side(n, scale.shape[axis]), axis=axis).take(np.arange(n), axis)
    return scale


def _join(how: str) -> Callable[[list[np.ndarray]], np.ndarray]:
    return lambda parts: _JOINS[how].join([stored(np.ascontiguousarray(y)) for y in parts]).values()


def _fits(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if y.size != np.prod(shape):
        raise BadInput(f"stage/weights: {list(y.shape)} for a layer of {list(shape)}")
    return y.reshape(shape)


def _absmax(nested: Nested, offset: float, each: int = NESTED) -> np.ndarray:
    if nested.scales is None or nested.values is None:
        return nested.absmax
    return nested.values[nested.absmax] * np.repeat(nested.scales, each)[: nested.absmax.size] + offset


def _along(scales: np.ndarray, each: int, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks go on from row to row."""
    return np.repeat(scales, each)[: np.prod(shape)]


def _high_first(codes: np.ndarray) -> np.ndarray:
    return np.stack([codes >> 4, codes & 15], axis=-1).reshape(-1)


class WeightsRule(NamedTuple):
    """The parts of the rule.

    scaled: stored values, scale -> scaled values
    own:    scales of the parts that are joined -> the scale of each
    join:   name of the join -> (parts -> the network's tensor)
    fits:   tensor, the layer's shape -> the tensor in this shape
    table:  embedding table, rows of added tokens -> the whole table
    codes:  bytes, two codes each -> codes
    values: kind -> the values of the 16 codes
    absmax: scales, or their codes with the scales of those and the values of codes, offset -> scales
    along:  scales, number of codes that have one, shape -> the scale of each code, flat
    """

    scaled: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda values, scale: (
        values * spread(scale, values.shape)
    )
    own: Callable[[list[np.ndarray]], list[np.ndarray]] = lambda scales: scales
    join: Callable[[str], Callable[[list[np.ndarray]], np.ndarray]] = _join
    fits: Callable[[np.ndarray, tuple[int, ...]], np.ndarray] = _fits
    table: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda table, rows: np.concatenate([table, rows])
    codes: Callable[[np.ndarray], np.ndarray] = _high_first
    values: Callable[[str], np.ndarray] = lambda kind: np.asarray(GROUPED_TYPES[kind], np.float64)
    absmax: Callable[[Nested, float], np.ndarray] = _absmax
    along: Callable[[np.ndarray, int, tuple[int, ...]], np.ndarray] = _along


RULE = WeightsRule()


def _expanded(rule: WeightsRule, t: Tensors, p: Params) -> np.ndarray:
    """Expand 4-bit codes as bitsandbytes stores them. Source: refsd/files/bitsandbytes.py."""
    shape = tuple(p["ne"][::-1])
    if p["kind"] not in _FOUR_BITS or "absmax" not in t:
        raise BadInput(f"stage/weights: kind {p['kind']!r}: expected one of {', '.join(_FOUR_BITS)}, with absmax")
    nested = Nested(*(t.get(name) for name in ("absmax", "nested_absmax", "nested_map")))  # type: ignore[arg-type]
    scales = rule.along(rule.absmax(nested, p["offset"]), p["each"], shape)
    values = rule.values(p["kind"]).astype(scales.dtype)[rule.codes(t["data"])][: scales.size]
    return (values * scales).reshape(shape)


def _run(rule: WeightsRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    if p["kind"]:
        parts = [_expanded(rule, t, p)]
    else:
        parts = [t[name].reshape(p["ne"][::-1]) for name in PARTS if name in t]
    if "scale" in t:
        scales = [t.get(name, t["scale"]) for name, _ in zip(SCALES, parts, strict=False)]
        scales = rule.own(scales) if SCALES[1] in t else scales
        parts = [rule.scaled(y, scale) for y, scale in zip(parts, scales, strict=True)]
    weight = rule.join(p["join"])(parts)
    weight = rule.fits(weight, tuple(p["layer"]))
    return {"weight": rule.table(weight, t["added"]) if "added" in t else weight}


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """A nested scale is a sum, in which its offset may cancel; NF4's values reach 1, FP4's too."""
    t = inputs.tensors
    if "nested_map" not in t:
        return np.abs(truth)
    return np.full(
        truth.shape, abs(inputs.params["offset"]) + t["nested_absmax"].max() * np.abs(t["nested_map"]).max()
    )


# --- what engines got wrong --------------------------------------------------------------------------------------


def _other_scale(change: Callable[[np.ndarray], np.ndarray]):
    """Put the scales in other places; no difference if there is only one."""

    def scaled(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if scale.size == 1:
            raise NoDifference
        return values * spread(change(scale), values.shape)

    return scaled


def _along_the_other(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if 1 not in scale.shape or values.shape[0] != values.shape[1]:
        raise NoDifference
    return values * spread(scale.T, values.shape)


def _in_turn(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if scale.size == 1 or any(n % m for n, m in zip(values.shape, scale.shape, strict=True)):
        raise NoDifference
    return values * np.tile(scale, [n // m for n, m in zip(values.shape, scale.shape, strict=True)])


def _transposed(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) < 2 or shape[0] != shape[1]:
        raise NoDifference
    return _fits(y, shape).swapaxes(0, 1)


def _taps_swapped(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) != 4 or shape[2] == 1:
        raise NoDifference
    return _fits(y, (*shape[:2], shape[3], shape[2])).swapaxes(2, 3)


def _taps_first(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Read the values as [S, R, I, O]."""
    if len(shape) != 4:
        raise NoDifference
    return _fits(y, shape[:1:-1] + shape[1::-1]).transpose(3, 2, 1, 0)


def _interleaved(parts: list[np.ndarray]) -> np.ndarray:
    if len(parts) < 2:
        raise NoDifference
    return np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])


def _along_inputs(parts: list[np.ndarray]) -> np.ndarray:
    if len(parts) < 2:
        raise NoDifference
    return np.concatenate(parts, axis=1).reshape(-1, parts[0].shape[1])


def _joined(change: Callable[[list[np.ndarray]], list[np.ndarray]]):
    return lambda how: lambda parts: _join(how)(change(parts))


def _as_bytes_of(dtype) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Read the rows' float32 bytes as another type, as many numbers as the rows have."""

    def table(right: np.ndarray, rows: np.ndarray) -> np.ndarray:
        taken = np.ascontiguousarray(rows, np.float32).view(dtype).reshape(-1)[: rows.size]
        return np.concatenate(
            [right, np.nan_to_num(taken.astype(right.dtype), posinf=0, neginf=0).reshape(rows.shape)]
        )

    return table


def _over_the_last(right: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.concatenate([right[: len(right) - len(rows)], rows, rows])


def _blocks(change: Callable[[np.ndarray], np.ndarray]):
    """change: values [blocks, 32] of a block type -> values"""

    def fits(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if y.size % 32:
            raise NoDifference
        return _fits(change(y.reshape(-1, 32)), shape)

    return fits


def _bytes_swapped(dtype):
    def fits(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            swapped = y.astype(dtype).view(np.uint16).byteswap().view(dtype).astype(y.dtype)
        return _fits(np.where(np.isnan(swapped), np.nan, swapped).astype(y.dtype), shape)

    return fits


def _in_each_row(scales: np.ndarray, each: int, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks begin anew in each row."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    if columns % each == 0:
        raise NoDifference
    own = np.arange(rows)[:, None] * -(-columns // each) + np.arange(columns) // each
    return scales[np.minimum(own, scales.size - 1)].reshape(-1)


def _other_nested(change: Callable[[np.ndarray], np.ndarray], each: int = NESTED):
    """change: the scales' own scales -> others"""

    def absmax(nested: Nested, offset: float) -> np.ndarray:
        if nested.scales is None:
            raise NoDifference
        return _absmax(nested._replace(scales=change(nested.scales)), offset, each)

    return absmax


_OF_FOUR_BITS = (
    part("4-bit codes: the lower half of a byte first", codes=lambda c: np.stack([c & 15, c >> 4], -1).reshape(-1)),
    part("4-bit codes: the upper halves of all bytes first", codes=lambda c: np.concatenate([c >> 4, c & 15])),
    part("4-bit codes: the other kind's values", values=lambda kind: RULE.values({"nf4": "fp4"}.get(kind, "nf4"))),
    part("4-bit codes: values evenly spaced", values=lambda kind: (np.arange(16) - 8) / 8),
    part("4-bit codes: blocks begin anew in each row", along=_in_each_row),
    part("4-bit codes: each scale for the block after", along=lambda s, n, shape: _along(np.roll(s, 1), n, shape)),
    part("4-bit codes: blocks half as long", along=lambda s, n, shape: _along(np.append(s, s), n // 2, shape)),
    param("4-bit codes: the scales' offset left out", offset=0.0),
    part("4-bit codes: the scales' own scales left out", absmax=_other_nested(np.ones_like)),
    part("4-bit codes: a scale of scales for 64, not 256", absmax=_other_nested(lambda s: np.tile(s, 4), 64)),
    part("4-bit codes: codes of scales for the scales", absmax=lambda n, x: 1.0 * n.absmax),
    part("4-bit codes: scales' codes not looked up", absmax=lambda n, x: _absmax(n._replace(values=_BYTES), x)),
    part("4-bit codes: the first scale of scales for all", absmax=_other_nested(lambda s: np.full_like(s, s[0]))),
)
_KNOWN = (
    *_OF_FOUR_BITS,
    part("a square's rows and columns swapped", fits=_transposed),
    part("column by column", fits=lambda y, shape: y.reshape(-1).reshape(shape, order="F")),
    part("rows and columns of the filter swapped", fits=_taps_swapped),
    part("the filter's taps first", fits=_taps_first),
    part("halves of a block of 32 taken in turn", fits=_blocks(lambda y: y.reshape(-1, 2, 16).swapaxes(1, 2))),
    part("pairs of a block of 32 taken apart", fits=_blocks(lambda y: y.reshape(-1, 16, 2).swapaxes(1, 2))),
    part("scale left out", scaled=lambda values, scale: values),
    part("divided by the scale", scaled=lambda values, scale: values / spread(scale, values.shape)),
    part("scaled twice", scaled=lambda values, scale: values * spread(scale, values.shape) ** 2),
    *(
        part(name, scaled=_other_scale(change))
        for name, change in (
            ("the first scale for all", lambda s: np.full_like(s, s.flat[0])),
            ("the largest scale for all", lambda s: np.full_like(s, s.max())),
            ("the mean scale for all", lambda s: np.full_like(s, s.mean())),
            ("scales transposed", lambda s: s.T.reshape(s.shape)),
            ("scales in reverse order", lambda s: np.flip(s)),
            ("each scale for the block after", lambda s: np.roll(s.ravel(), 1).reshape(s.shape)),
            ("the first scale of each row for the row", lambda s: np.repeat(s[:, :1], s.shape[1], axis=1)),
            ("the first row's scales for all rows", lambda s: np.repeat(s[:1], s.shape[0], axis=0)),
        )
    ),
    part("rows' scales along the inputs, or the other way round", scaled=_along_the_other),
    part("scales in turn, not for neighbours", scaled=_in_turn),
    part(
        "blocks of as many rows as there are for a scale, rounded up",
        scaled=lambda values, scale: values * spread(scale, values.shape, lambda n, scales: -(-n // scales)),
    ),
    *(
        part(f"joined parts: {name}", own=change)
        for name, change in (
            ("the first one's scale for all", lambda scales: [scales[0]] * len(scales)),
            ("the last one's scale for all", lambda scales: [scales[-1]] * len(scales)),
            ("the largest scale for all", lambda scales: [max(scales)] * len(scales)),
            ("scales in reverse order", lambda scales: scales[::-1]),
        )
    ),
    part("joined in reverse order", join=_joined(lambda parts: parts[::-1])),
    part(
        "queries and keys swapped",
        join=_joined(lambda parts: [parts[1], parts[0], *parts[2:]] if parts[1:] else parts),
    ),
    part("the first part for all", join=_joined(lambda parts: [parts[0]] * len(parts))),
    part("rows taken in turn", join=lambda how: _interleaved),
    part("joined along the inputs", join=lambda how: _along_inputs),
    part("shift and scale not swapped", join=lambda how: _join("same") if how == "shift and scale" else _join(how)),
    part("halves swapped", join=lambda how: _join("shift and scale") if how == "same" else _join(how)),
    *(
        part(f"the two bytes of {dtype.__name__} in the other order", fits=_bytes_swapped(dtype))
        for dtype in (np.float16, ml_dtypes.bfloat16)
    ),
    part("added rows as float16's bytes", table=_as_bytes_of(np.float16)),
    part("added rows as bfloat16's bytes", table=_as_bytes_of(ml_dtypes.bfloat16)),
    part("added rows before the table", table=lambda table, rows: np.concatenate([rows, table])),
    part("added rows over the last ones", table=_over_the_last),
    part("added rows left out", table=lambda table, rows: table),
)


STAGES = (
    Stage(
        "weights",
        "A stored tensor as the network multiplies it.",
        inputs={
            "data": "flat, in the file's order; of a kind of 4 bits its bytes, two codes each",
            "second?": "flat: what is joined to it",
            "third?": "flat",
            "scale?": "[] of all, [O, 1] of rows, [1, I] of columns, or [O / P, I / Q] of blocks of P x Q, "
            "rounded up if P and Q are powers of two",
            "second_scale?": "[]: of what is joined, where each part has its own",
            "third_scale?": "[]",
            "added?": "[N, E]: rows of added tokens",
            "absmax?": "scales of `each` codes of 4 bits; if nested codes, too",
            "nested_absmax?": "scales of 256 of those codes each",
            "nested_map?": "[256]: the values of those codes",
        },
        # ne: dimensions as a GGUF lists them, innermost first; layer: the layer's shape; kind: of bitsandbytes' 4
        # bits, each: codes that have a scale, offset: added to nested scales
        params={"ne": REQUIRED, "layer": REQUIRED, "join": "same", "kind": "", "each": 64, "offset": 0.0},
        outputs={"weight": Output(("row", "column", "filter row", "filter column"), _size, 4)},
        rule=RULE,
        choices={"join": _JOINS},
        run=_run,
        known=_KNOWN,
        cases=CASES,
    ),
)
