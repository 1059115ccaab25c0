"""Tell a tensor that was only stored in another type from a damaged one, by what the type costs.

The cost of a type is the error of the first file's own values after they are requantised to it. The second file may
have a few times that error, in the tensor, in each row and column, and in each block of a row.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from refsd.kernels.quant import BLOCK_TYPES, convrot
from refsd.kernels.quant.block_type import Importance
from refsd.numerics.tensor import GROUPED_TYPES, SCALAR_TYPES, Grouping, Scaling, StoredTensor, stored

PIECE = 2**20  # elements that are expanded at a time
_SAMPLE = 2**18  # elements from which the typical cost is measured
# Times the cost of refsd's quantiser that another one's error may be: truncation and learned rounding double it,
# an importance matrix moves it between columns, MXFP8 cuts off the largest of a group by up to an eighth. Up to
# _ALIKE times is allowed even where values are lost.
_TENSOR, _ROW, _COLUMN, _BLOCK, _ALIKE = 2.5, 6.0, 6.0, 8.0, 1.4
_LOST = 0.9  # relative error from which values are lost: of a tensor or a row
_LOST_COSTS = 6.0  # the same for columns and blocks, in costs, of types of so few bits that this is more
_EXACT = 1e-6  # relative error that arithmetic in float32 leaves
_WIDTH = 32  # elements of a row that are judged together
# Relative change of size that a quantiser may make: truncation to bf16 0.4 %, others by their cost.
_TRUNCATED, _OF_COST = 4e-3, 0.35
_TOP = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0, "i16": 32767.0}
_INTEGERS = ("i8", "i16")
_GROUPS = (16, 64, 256, 1024, 4096)  # of ConvRot


class Deviation(NamedTuple):
    """How the values of the second file differ from the first's.

    error:    relative L2 error; 0 if all values are equal
    factor:   by which the second is larger; 1 if no more than requantising explains
    rest:     relative L2 error once the factor is allowed for
    within:   True if requantising explains all of it
    place:    where the error lies, if only some rows, columns or blocks have one: "3 of 768 rows all zero, first 5"
    """

    error: float
    factor: float
    rest: float
    within: bool
    place: str


class _Lines(NamedTuple):
    """Rows, columns or blocks that have more error than their type costs: indices, and <a, a>, <a, b>, <b, b>."""

    name: str
    total: int
    index: np.ndarray
    aa: np.ndarray
    ab: np.ndarray
    bb: np.ndarray


def deviation(a: StoredTensor, b: StoredTensor) -> Deviation:
    """Compare two tensors of the same shape, a few rows in memory at a time."""
    pair = _Pair(a, b)
    x, y, cost = pair.sample()
    power = float((x * x).sum())
    typical = float(cost.sum()) / power if power else 0.0
    aa = bb = ab = dd = 0.0
    rows: list[_Lines] = []
    blocks: list[_Lines] = []
    for start, stop in pair.pieces():
        x1, y1 = pair.values(slice(start, stop))
        errors, powers = _squares(y1 - x1), _squares(x1)
        aa, bb, ab = aa + float(powers.sum()), bb + float(np.vdot(y1, y1)), ab + float(np.vdot(x1, y1))
        dd += float(errors.sum())
        for found, lines in zip(
            (rows, blocks), _odd_lines(pair, start, x1, y1, errors, powers, typical), strict=True
        ):
            found.append(lines)
    error = math.sqrt(dd / aa) if aa else (math.inf if dd else 0.0)
    if not dd:
        return Deviation(error, 1.0, 0.0, True, "")
    found = [_joined(rows), _odd_columns(pair, x, y, cost, typical), _joined(blocks)]
    odd = [lines for lines in found if lines.index.size]
    whole = float(_allowed(_TENSOR, typical * aa, aa))
    within = not pair.same_storage and not odd and dd <= whole
    factor, rest = 1.0, error
    if aa * bb and ab:
        own = ab / aa / pair.honest_factor(x, y)
        left = math.sqrt(max(0.0, 1 - ab * ab / (aa * bb)))
        spent = pair.scaled_cost(x, ab / aa)
        noise = max(_TRUNCATED, _OF_COST * math.sqrt(typical)) if typical else 3 * left
        if left <= _TENSOR * spent + _EXACT and abs(own - 1) > noise and _most_are_scaled(x, y, ab / aa, own):
            factor, rest = own, left
    place = _place(odd, typical) if math.isfinite(error) else ""
    return Deviation(error, factor, rest, within and factor == 1.0, place)


def rotation_between(a: StoredTensor, b: StoredTensor) -> int:
    """Return the size of ConvRot's groups if b is a rotated in them, as far as its type allows; else 0."""
    if len(a.shape) != 2 or a.shape != b.shape:
        return 0
    pair = _Pair(a, b)
    x, y, _ = pair.sample()
    for group in _GROUPS:
        if a.shape[1] % group == 0:
            turned = convrot.rotate(x, group)
            cost = np.square(requantised(turned, pair.of_sample(pair.b)) - turned).sum()
            if np.square(y - turned).sum() <= _allowed(_TENSOR, cost, np.square(x).sum()):
                return group
    return 0


def requantised(x: np.ndarray, like: StoredTensor) -> np.ndarray:
    """Round values to the storage of `like` and expand them again. x: float64 [R, W] -> float64 [R, W]

    like: rows of the tensor whose type, scales and rotation count; a scale that would cut values off is enlarged
    """
    scaling = like.scaling
    if like.coded is not None:
        turn = scaling.rotation if isinstance(scaling, Scaling) else 0
        z = convrot.rotate(np.ascontiguousarray(x), turn) if turn else x
        y = _in_steps(z, *like.coded)
        return convrot.rotate(y, turn) if turn else y
    if isinstance(scaling, Grouping):
        return _requantised_groups(x, GROUPED_TYPES[like.type], scaling)
    if like.type in BLOCK_TYPES:
        block = BLOCK_TYPES[like.type]
        blocks = np.ascontiguousarray(x, np.float32).reshape(-1, block.block)
        more = (np.ones(block.block, np.float32),) if block.importance is Importance.REQUIRED else ()
        return block.dequantize(block.quantize(blocks, *more)).astype(np.float64).reshape(x.shape)
    if like.type in _TOP and (scaling is not None or like.type not in _INTEGERS):
        turn = scaling.rotation if scaling is not None else 0
        z = convrot.rotate(np.ascontiguousarray(x), turn) if turn else x
        scale = np.ones((1, 1))
        if scaling is not None:
            axis = 1 if scaling.scale.size > 1 else None
            blocks = scaling.scale.ndim == 2
            largest = np.abs(z) if blocks else np.abs(z).max(axis=axis, keepdims=True, initial=0.0)
            own = scaling.of_elements(*x.shape).astype(np.float64) * scaling.unit
            scale = np.maximum(np.abs(own), largest / _TOP[like.type])
            scale = np.where(scale > 0, scale, 1.0)
        codes = np.clip(z / scale, -_TOP[like.type], _TOP[like.type])
        codes = (
            np.rint(codes) if like.type in _INTEGERS else codes.astype(SCALAR_TYPES[like.type]).astype(np.float64)
        )
        return convrot.rotate(codes * scale, turn) if turn else codes * scale
    dtype = SCALAR_TYPES[like.type]
    return x if dtype.kind in "iub" else x.astype(dtype).astype(np.float64)


def _in_steps(x: np.ndarray, bits: int, group: int) -> np.ndarray:
    """Round to the middles of 2^bits equal steps, from -m to m: the largest |x| of each `group` of a row."""
    size = group if group and x.shape[1] % group == 0 else x.shape[1]
    groups = x.reshape(-1, size)
    largest = np.abs(groups).max(axis=1, keepdims=True, initial=0.0)
    step = np.where(largest > 0, largest, 1.0) / 2 ** (bits - 1)
    middles = np.clip(np.floor(groups / step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) + 0.5
    return np.where(largest > 0, middles * step, 0.0).reshape(x.shape)


def _requantised_groups(x: np.ndarray, table: np.ndarray, scaling: Grouping) -> np.ndarray:
    if scaling.columns is not None:
        columns = np.where(scaling.columns == 0, 1.0, scaling.columns.astype(np.float64))
        smoothed = (x.reshape(-1, len(columns)) / columns).reshape(x.shape)
        y = _requantised_groups(smoothed, table, scaling._replace(columns=None))
        return (y.reshape(-1, len(columns)) * columns).reshape(x.shape)
    levels = np.unique(table[np.isfinite(table)]).astype(np.float64)
    flat = np.zeros(len(scaling.scale) * scaling.group)
    flat[: x.size] = x.reshape(-1)
    groups = flat.reshape(-1, scaling.group)
    scale = np.maximum(np.abs(scaling.scale.astype(np.float64)), np.abs(groups).max(1) / levels[-1])[:, None]
    scale = np.where(scale > 0, scale, 1.0)
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, groups / scale)
    return (levels[codes] * scale).reshape(-1)[: x.size].reshape(x.shape)


class _Pair:
    """Two tensors of the same shape as matrices of the same rows, whose rows are whole blocks of both types."""

    def __init__(self, a: StoredTensor, b: StoredTensor):
        self.same_storage = _storage(a) == _storage(b)
        self.takes_importance = not self.same_storage and any(
            t.type in BLOCK_TYPES and BLOCK_TYPES[t.type].importance is not Importance.UNUSED for t in (a, b)
        )
        count, n = (a.shape[0] if len(a.shape) > 1 else 1), math.prod(a.shape)
        width = n // count if count else 0
        unit = math.lcm(_unit(a), _unit(b))
        self.rows, self.width = (count, width) if width and width % unit == 0 else (1, n)
        self.a, self.b = self._matrix(a), self._matrix(b)

    def _matrix(self, tensor: StoredTensor) -> StoredTensor:
        scale = tensor.scaling.scale.size if tensor.scaling is not None else 1
        if scale > 1 and not isinstance(tensor.scaling, Grouping) and self.rows != tensor.shape[0]:
            tensor = stored(tensor.values())
        data = tensor.data.reshape(self.rows, -1) if tensor.type in SCALAR_TYPES else tensor.data
        return tensor._replace(shape=(self.rows, self.width), data=data)

    def pieces(self) -> Iterator[tuple[int, int]]:
        step = max(1, PIECE // max(1, self.width))
        for start in range(0, self.rows, step):
            yield start, min(self.rows, start + step)

    def part(self, tensor: StoredTensor, index: slice | np.ndarray) -> StoredTensor:
        return tensor if self.rows == 1 else tensor.rows(index)

    def values(self, index: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, other = (np.asarray(self.part(t, index).values(), np.float64) for t in (self.a, self.b))
        return one.reshape(-1, self.width), other.reshape(-1, self.width)

    @property
    def sampled(self) -> np.ndarray:
        count = min(self.rows, max(16, _SAMPLE // max(1, self.width)))
        return np.unique(np.linspace(0, max(0, self.rows - 1), count).astype(np.int64))

    def of_sample(self, tensor: StoredTensor) -> StoredTensor:
        return self.part(tensor, self.sampled)

    def sample(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows of both, in float64, and the squared error that their types cost, element by element."""
        x, y = self.values(self.sampled)
        return x, y, self.cost(x, y, self.sampled)

    def cost(self, x: np.ndarray, y: np.ndarray, index: np.ndarray) -> np.ndarray:
        if self.same_storage:
            return np.zeros(x.shape)
        to_b = requantised(x, self.part(self.b, index)) - x
        to_a = requantised(y, self.part(self.a, index)) - y
        return to_b * to_b + to_a * to_a

    def honest_factor(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return by which requantising alone changes the size: types of few bits make values smaller."""
        if self.same_storage:
            return 1.0
        to_b, to_a = requantised(x, self.of_sample(self.b)), requantised(y, self.of_sample(self.a))
        down, up = float(np.vdot(to_b, x)) / (float(np.vdot(x, x)) or 1.0), float(np.vdot(y, to_a))
        return (down or 1.0) * ((up / (float(np.vdot(to_a, to_a)) or 1.0)) or 1.0)

    def scaled_cost(self, x: np.ndarray, factor: float) -> float:
        """Return the relative error of both types for values that are larger by a factor."""
        power = float(np.vdot(x, x)) * factor * factor
        spent = [requantised(x * factor, self.of_sample(t)) - x * factor for t in (self.a, self.b)]
        return math.sqrt(sum(float(np.vdot(d, d)) for d in spent) / power) if power else 0.0


def _storage(tensor: StoredTensor) -> tuple[object, ...]:
    scaling = tensor.scaling
    if isinstance(scaling, Grouping):
        return tensor.type, scaling.group
    kind = (tensor.type, tensor.coded)
    return kind if scaling is None else (*kind, scaling.scale.size, scaling.rotation)


def _unit(tensor: StoredTensor) -> int:
    if isinstance(tensor.scaling, Grouping):
        return tensor.scaling.group
    return BLOCK_TYPES[tensor.type].block if tensor.type in BLOCK_TYPES else 1


def _allowed(times: float, cost, power) -> np.ndarray:
    """Return the squared error that tensors or rows of these squared costs and squared sizes may have."""
    most = np.minimum(times**2 * cost, _LOST**2 * power)
    return np.maximum(most, _ALIKE**2 * cost) + _EXACT**2 * power


def _allowed_parts(pair: "_Pair", times: float, cost, power, typical: float) -> np.ndarray:
    """Return the same for columns and blocks: with an importance matrix any of them may have most of the error."""
    if pair.takes_importance:
        return np.maximum(times**2 * cost, _LOST**2 * power) + _EXACT**2 * power
    lost = max(_LOST, _LOST_COSTS * math.sqrt(typical))
    return np.maximum(np.minimum(times**2 * cost, lost**2 * power), _ALIKE**2 * cost) + _EXACT**2 * power


def _width(x: np.ndarray) -> int:
    """Return the elements of a row that are judged together."""
    return _WIDTH if x.shape[1] % _WIDTH == 0 else x.shape[1]


def _squares(x: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each block of each row. [R, W] -> [R, blocks]"""
    blocks = x.reshape(len(x), -1, _width(x))
    return np.einsum("rbi,rbi->rb", blocks, blocks)


def _odd_lines(
    pair: _Pair, start: int, x: np.ndarray, y: np.ndarray, errors: np.ndarray, powers: np.ndarray, typical: float
) -> tuple[_Lines, _Lines]:
    """Return the rows, and the blocks of rows, with more error than their types cost.

    Rows that exceed the tensor's typical cost are requantised themselves, so that only these take that time.
    errors, powers: sums of squares of y - x and of x, as _squares returns them
    """

    def bad(errors, powers, cost):
        whole = powers.sum(1)
        rows = errors.sum(1) > _allowed(_ROW, np.maximum(typical * whole, cost.sum(1)), whole)
        least = typical * np.maximum(powers, powers.mean(1, keepdims=True))
        return rows, errors > _allowed_parts(pair, _BLOCK, np.maximum(least, cost), powers, typical)

    rows, blocks = bad(errors, powers, np.zeros((len(x), 1)))
    suspects = np.flatnonzero(rows | blocks.any(1))
    if suspects.size and not pair.same_storage:
        cost = pair.cost(x[suspects], y[suspects], start + suspects)
        spent = cost.reshape(len(cost), -1, _width(x)).sum(2)
        rows[suspects], blocks[suspects] = bad(errors[suspects], powers[suspects], spent)
    at, (row, column) = np.flatnonzero(rows), np.nonzero(blocks)
    width = _width(x)
    a, b = (v.reshape(len(v), -1, width)[row, column] for v in (x, y))
    per_row, total = x.shape[1] // width, pair.rows
    return (
        _Lines("row", total, start + at, *_products(x[at], y[at])),
        _Lines(f"block of {width}", total * per_row, (start + row) * per_row + column, *_products(a, b)),
    )


def _odd_columns(pair: _Pair, x: np.ndarray, y: np.ndarray, cost: np.ndarray, typical: float) -> _Lines:
    """Return the columns with more error than their types cost, by the sample's rows."""
    power, spent = np.square(x).sum(0), cost.sum(0)
    least = typical * np.maximum(power, power.mean() if power.size else 0.0)
    wrong = np.square(y - x).sum(0) > _allowed_parts(pair, _COLUMN, np.maximum(spent, least), power, typical)
    index = np.flatnonzero(wrong) if len(x) >= 8 else np.zeros(0, np.int64)
    return _Lines("column", x.shape[1], index, *_products(x[:, index].T, y[:, index].T))


def _most_are_scaled(x: np.ndarray, y: np.ndarray, factor: float, own: float) -> bool:
    """True if the factor is that of most rows and columns, not the mean over a few damaged ones and healthy ones.

    own: the factor without what requantising alone does to the size
    """
    for axis in (0, 1):
        power, product = (x * x).sum(axis), (x * y).sum(axis)
        middle = float(np.median(product[power > 0] / power[power > 0]))
        if abs(middle - factor) > abs(middle - factor / own):
            return False
    return True


def _products(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (a * a).sum(1), (a * b).sum(1), (b * b).sum(1)


def _joined(of: list[_Lines]) -> _Lines:
    if not of:
        return _Lines("row", 0, *[np.zeros(0)] * 4)
    return _Lines(of[0].name, of[0].total, *(np.concatenate(parts) for parts in list(zip(*of, strict=True))[2:]))


def _place(odd: list[_Lines], typical: float) -> str:
    """Say which lines differ and how: the first kind whose lines all differ in one way, or the fewest lines."""
    for lines in odd:
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = lines.ab / lines.aa
            left = np.sqrt(np.maximum(0, 1 - lines.ab**2 / (lines.aa * lines.bb)))
        alike = bool((left <= _ROW * math.sqrt(typical) + _EXACT).all())
        if not lines.bb.any():
            return _text(lines, "all zero")
        if alike and (abs(factor + 1) < 0.05).all():
            return _text(lines, "negated")
        if alike and lines.index.size > 1:
            order = ": scales in another order?" if factor.min() < 1 < factor.max() else ""
            return _text(lines, f"scaled by {factor.min():.3g} to {factor.max():.3g}{order}")
        if alike:
            return _text(lines, f"scaled by {factor[0]:.3g}")
    lines = min(odd, key=lambda of: of.index.size / of.total, default=None)
    return _text(lines, "changed") if lines is not None and lines.index.size < lines.total else ""


def _text(lines: _Lines, how: str) -> str:
    names = f"{lines.name}s" if " of " not in lines.name else lines.name.replace("block", "blocks", 1)
    return f"{lines.index.size} of {lines.total} {names} {how}, first {int(lines.index[0])}"
