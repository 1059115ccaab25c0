"""Find what a file's values show to be wrong: NaN, zeros, lost scales, foreign sizes, copied and exchanged layers.

Compare each tensor with its siblings, the same tensor of other blocks. Report nothing where the siblings disagree.
"""

import itertools
import math
import statistics as median_of
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from refsd.diagnosis.statistics import Statistics, statistics
from refsd.files.stored import Weights, enough_memory
from refsd.golden.wording import counted
from refsd.networks.dimensions import Shape
from refsd.numerics.printable import printable
from refsd.weights.checkpoint import Checkpoint
from refsd.weights.culprits import NO_WEIGHTS, Finding
from refsd.weights.name_groups import few
from refsd.weights.size_vote import block, tail

# A layer is an outlier if log2 of its deviation is so far from its siblings' median.
_BITS = 5.0
# What a ControlNet adds to its UNet, which is zero before it is trained.
_ZERO_AT_FIRST = ("controlnet:zero_convs.", "controlnet:middle_block_out.", "controlnet:input_hint_block.14.")
# Shares of exact zeros that are worth a line, and that siblings may contradict; types whose zeros are no rounding.
_HALF, _EIGHTH = 0.5, 0.125
_PLAIN = ("f32", "f16", "bf16")
_LONG_RUN = 3  # tensors at least of a run of zero bytes
_STEP = 2**16  # bytes looked at a time for its ends
_JURY = 5  # siblings at least that decide about an outlier or an exchange
# Largest finite value of a float of 8 bits: a tensor that reaches it was divided by a scale.
_TOP = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}
# Layers of a block with the same shape, of which a converter may exchange two.
_PAIRS = (
    ("to_q.", "to_k."),
    ("q_proj.", "k_proj."),
    ("SelfAttention.q.", "SelfAttention.k."),
    ("feed_forward.w1.", "feed_forward.w3."),
    ("gate_proj.", "up_proj."),
    ("wi_0.", "wi_1."),
)
_FUSED = ("qkv.weight", "in_proj_weight")  # rows of q, of k, of v
_GATED = ("ff.net.0.proj.weight",)  # rows of the value, of the gate


class Read(NamedTuple):
    """A tensor of the file that was read.

    place: its name in the original, without the component's prefix; the file's name if it belongs to no component
    file:  the weights that hold it, and
    start: its first byte there
    nbytes: its bytes there
    parts: statistics of the rows of q, k and v of a fused layer, or of the halves of a gated one
    """

    name: str
    place: str
    type: str
    shape: Shape
    of: Statistics
    parts: tuple[Statistics, ...] = ()
    file: Weights | None = None
    start: int = 0
    nbytes: int = 0


def read_values(
    checkpoint: Checkpoint, sampled: bool, progress: Callable[[int], None] = lambda _: None
) -> list[Read]:
    """Read every tensor that refsd can read, or a sample of each.

    progress: called with the number of bytes of each tensor after it was read
    Raises BadInput for a tensor that does not fit into memory.
    """
    places = {
        part: f"{component.name}:{ours}"
        for component in checkpoint.components.values()
        for ours, source in component.weights.sources.items()
        for part in source.names
    }
    found = []
    for weights in checkpoint.files:
        for name, header in weights.headers.items():
            if weights.is_readable(name) and (header.type not in NO_WEIGHTS or name in weights.scalings):
                with enough_memory(weights.path, name):
                    tensor = weights[name]
                    parts = _split(name, header.shape)
                    halves = tuple(statistics(tensor.rows(part), sampled) for part in parts)
                    of = statistics(tensor, sampled)
                place = places.get(name, name)
                found.append(
                    Read(name, place, header.type, header.shape, of, halves, weights.holder(name), *header[2:])
                )
            progress(header.nbytes)
    return found


def judge(read: list[Read], adapter: bool = False) -> list[Finding]:
    """Return what the values show; an adapter's layers have no siblings."""
    found = [*_not_finite(read), *_zero_bytes(read)]
    if not adapter:
        explained = {name for finding in found if finding.kind == "zero" for name in finding.tensors}
        left = [r for r in read if r.name not in explained]
        found += [*_constant(read, left), *_scales(left), *_sizes(left), *_copies(left), *_exchanged(left)]
        found += _zeros(left)
    return found


def zero_shares(read: list[Read]) -> dict[str, float]:
    """Return the share of exact zeros of matrices that are zero in half or more, but not all of it."""
    return {r.name: _zero_share(r) for r in read if _is_matrix(r) and _zero_share(r) >= _HALF}


def _split(name: str, shape: Shape) -> list[slice]:
    n = 3 if name.endswith(_FUSED) else 2 if name.endswith(_GATED) else 1
    if n == 1 or len(shape) != 2 or shape[0] % n:
        return []
    rows = shape[0] // n
    return [slice(i * rows, (i + 1) * rows) for i in range(n)]


def named(read: list[Read]) -> str:
    return few([printable(r.name, 120) for r in read])


def _not_finite(read: list[Read]) -> Iterator[Finding]:
    bad = [r for r in read if r.of.bad]
    if bad:
        first, *more = bad
        rest = f"; also {named(more)}" if more else ""
        text = f"{counted(len(bad), 'tensor')} with NaN or infinity: {named([first])} has {first.of.bad}{rest}"
        yield Finding("not finite", text, tuple(r.name for r in bad))


def _siblings(read: list[Read]) -> Mapping[tuple[str, Shape], list[Read]]:
    """Group tensors of the same shape at the same place of different blocks."""
    groups: dict[tuple[str, Shape], list[Read]] = {}
    for r in read:
        component, colon, place = r.place.partition(":")
        end = tail(place if colon else component)
        if end:
            groups.setdefault((f"{component if colon else ''}:{end}", r.shape), []).append(r)
    return groups


def _zero_bytes(read: list[Read]) -> Iterator[Finding]:
    """Find long runs of zero bytes in a file of the full size: a download that stopped, or lacks a part."""
    files = {id(r.file): r.file for r in read}
    for file in files.values():
        whose = f"{file.path.name}: " if file is not None and len(files) > 1 else ""
        of = sorted((r for r in read if r.file is file), key=lambda r: r.start)
        full = [r for r in of if math.prod(r.shape) > 1]
        if file is None or len(full) < _LONG_RUN:
            continue
        if all(_is_zero(r) for r in full):
            text = f"{whose}all {len(full)} tensors are zero: nothing of the download is there; download it again"
            yield Finding("zero", text, tuple(r.name for r in of))
            continue
        for zero, group in itertools.groupby(of, _is_zero):
            run = list(group)
            if all(r.place.startswith(_ZERO_AT_FIRST) for r in run):
                continue
            kinds = {tuple(r.name.split(".")[-2:]) for r in run}  # tensors of one kind may be zero on purpose
            if not zero or len(run) < _LONG_RUN or len(kinds) < 2 or sum(_is_matrix_shape(r) for r in run) < 2:
                continue
            start, stop = _zero_range(file, run)
            last = stop >= len(file.content)
            where = f"all bytes from {start} on are zero" if last else f"all bytes from {start} to {stop} are zero"
            why = "the download stopped" if last else "a part of the download is missing"
            names = {r.name for r in run} | {r.name for r in of if start < r.start + r.nbytes and r.start < stop}
            text = f"{whose}{where}, in {counted(len(names), 'tensor')}: {why}; download it again"
            yield Finding("zero", text, tuple(r.name for r in of if r.name in names))


def _is_zero(r: Read) -> bool:
    return not (r.of.bad or r.of.low or r.of.high)


def _is_matrix_shape(r: Read) -> bool:
    return len([n for n in r.shape if n > 1]) > 1


def _zero_range(file: Weights, run: list[Read]) -> tuple[int, int]:
    """Return the first zero byte of the tensors' run, and the first behind it that is not zero."""
    content = np.frombuffer(file.content, np.uint8)
    start, stop = run[0].start, run[-1].start
    while start and not content[max(0, start - _STEP) : start].any():
        start = max(0, start - _STEP)
    nonzero = np.flatnonzero(content[max(0, start - _STEP) : start])
    start = max(0, start - _STEP) + int(nonzero[-1]) + 1 if nonzero.size else start
    while stop < len(content) and not content[stop : stop + _STEP].any():
        stop += _STEP
    nonzero = np.flatnonzero(content[stop : stop + _STEP])
    return start, stop + int(nonzero[0]) if nonzero.size else len(content)


def _constant(read: list[Read], judged: list[Read]) -> Iterator[Finding]:
    """Find matrices of one value; vectors may be constant, unless a norm is zero and its siblings are not."""
    siblings = {r.name: of for of in _siblings(read).values() for r in of}
    odd: dict[float, list[tuple[Read, int]]] = {}
    for r in judged:
        if r.of.bad or r.of.count < 2 or r.of.low != r.of.high or r.place.startswith("controlnet:"):
            continue
        a_norm = r.name.endswith((".weight", ".scale")) and len(r.shape) == 1
        if not _is_matrix_shape(r) and (r.of.high or not a_norm):
            continue
        group = siblings.get(r.name, [r])
        lively = sum(other.of.low != other.of.high or other.of.high != r.of.high for other in group)
        if len(group) == 1 or lively:
            odd.setdefault(r.of.high, []).append((r, lively))
    for value, of in odd.items():
        lively = of[0][1]
        says = f"constant, {value:g}" if value else "all zero"
        jury = f"; {counted(lively, 'sibling')} {'is' if lively == 1 else 'are'} not" if lively else ""
        jury = jury.replace("; ", "; of the first ", 1) if len(of) > 1 else jury
        text = f"{counted(len(of), 'tensor')} {says}: {named([r for r, _ in of])}{jury}"
        yield Finding("constant", text, tuple(r.name for r, _ in of), sure=False)


def _zero_share(r: Read) -> float:
    return r.of.zeros / r.of.count


def _zeros(read: list[Read]) -> Iterator[Finding]:
    """Find matrices of plain floats that are zero in an eighth or more, where their siblings hardly are.

    Without siblings nobody knows: channels that are added for a picture to edit begin as zeros, and tables of words
    are filled up with them.
    """
    odd: dict[str, tuple[float, int]] = {}
    for group in _siblings(read).values():
        of = [r for r in group if r.type in _PLAIN and _is_matrix_shape(r) and not r.of.bad]
        empty = [r for r in of if _is_matrix(r) and _zero_share(r) >= _EIGHTH]
        others = [r for r in of if r not in empty]
        if empty and len(others) >= len(empty) and max(map(_zero_share, others)) <= _EIGHTH / 8:
            odd |= {r.name: (_zero_share(r), len(others)) for r in empty}
    if odd:
        first, (share, others) = next(iter(odd.items()))
        also = f"; also {few([printable(name, 120) for name in [*odd][1:]])}" if len(odd) > 1 else ""
        text = f"{100 * share:.0f} % of {printable(first, 120)} is exactly zero, "
        text += f"hardly any of {counted(others, 'sibling')}{also}"
        yield Finding("zeros", text, tuple(odd), sure=False)


def _scales(read: list[Read]) -> Iterator[Finding]:
    """Find 8-bit floats that use the type's whole range: they were divided by a scale that is not there."""
    bare = [r for r in read if r.of.largest_code and len(r.shape) > 1]
    full = [r for r in bare if r.of.largest_code >= _TOP[r.type] * 0.98]
    if full and 2 * len(full) >= len(bare):
        top = f"{_TOP[full[0].type]:g}"
        text = f"{counted(len(full), 'scale')} lost: {named(full)} {full[0].type} up to {top}, without weight_scale"
        yield Finding("scale", text, tuple(r.name for r in full))


def _sizes(read: list[Read]) -> Iterator[Finding]:
    """Find tensors whose values are many times their siblings': a type or a scale was taken for another."""
    odd: list[tuple[Read, int, float]] = []
    for group in _siblings(read).values():
        logs = {r.name: math.log2(r.of.deviation) for r in group if r.of.deviation}
        if len(logs) <= _JURY or len(group[0].shape) < 2:
            continue
        middle = median_of.median(logs.values())
        spread = median_of.median(abs(log - middle) for log in logs.values())
        for r in group:
            if abs(logs.get(r.name, middle) - middle) > max(_BITS, 10 * spread):
                odd.append((r, len(logs) - 1, middle))
    if odd:
        (r, others, middle), *more = odd
        also = f"; also {named([other for other, *_ in more])}" if more else ""
        text = (
            f"values of another size: {named([r])} has a standard deviation of {r.of.deviation:.2g}, "
            f"{counted(others, 'sibling')} {2**middle:.2g}: another type or scale?{also}"
        )
        yield Finding("size", text, tuple(r.name for r, *_ in odd), sure=False)


def _copies(read: list[Read]) -> Iterator[Finding]:
    """Find blocks, or single matrices, that hold the same bytes as a sibling."""
    pairs: dict[tuple[str, str], list[tuple[Read, Read]]] = {}
    per_block: dict[str, int] = {}
    for r in read:
        if _is_matrix(r):
            per_block[_block(r)] = per_block.get(_block(r), 0) + 1
    for group in _siblings(read).values():
        first: dict[tuple[bytes, str], Read] = {}
        for r in group:
            if not _is_matrix(r):
                continue
            other = first.setdefault((r.of.digest, r.type), r)
            if other is not r:
                pairs.setdefault((_block(other), _block(r)), []).append((other, r))
    for (one, other), of in pairs.items():
        if len(of) > 1 and len(of) == per_block[other]:
            text = (
                f"duplicated layer: {printable(other, 120)} is a copy of {printable(one, 120)}, {len(of)} matrices"
            )
        else:
            text = f"duplicated: {few([f'{named([b])} is a copy of {named([a])}' for a, b in of], 2)}"
        yield Finding("copy", text, tuple(b.name for _, b in of), sure=False)


def _is_matrix(r: Read) -> bool:
    return r.of.low != r.of.high and len(r.shape) > 1


def _block(r: Read) -> str:
    component, colon, place = r.place.partition(":")
    stack, number = block(place if colon else component)
    return f"{stack}.{number}" if number >= 0 else stack


def _exchanged(read: list[Read]) -> Iterator[Finding]:
    """Find two layers of a block whose statistics fit only if they are exchanged, by the other blocks."""
    by_place = {r.place: r for r in read}
    groups: dict[str, list[tuple[str, Statistics, Statistics, tuple[str, ...]]]] = {}
    for r in read:
        end = tail(r.place.partition(":")[2] or r.place)
        if not end:
            continue
        if len(r.parts) > 1:
            words = "q and k" if len(r.parts) == 3 else "value and gate"
            groups.setdefault(f"{words} in {end}", []).append((f"{words} in {r.name}", *r.parts[:2], (r.name,)))
        for one, other in _PAIRS:
            twin = by_place.get(r.place.replace(one, other)) if one in end else None
            if twin is not None and twin.shape == r.shape and twin is not r:
                row = (
                    f"{printable(r.name, 120)} and {printable(twin.name, 120)}",
                    r.of,
                    twin.of,
                    (r.name, twin.name),
                )
                groups.setdefault(end, []).append(row)
    for rows in groups.values():
        for i, row in enumerate(rows):
            ratio = _only_exchanged(
                i, [(math.log2(a.deviation or 1), math.log2(b.deviation or 1)) for _, a, b, _ in rows]
            )
            if ratio is not None:
                own, usual = ratio
                text = (
                    f"probably swapped: {printable(row[0], 260)}: their deviations are as {own:.2f} to 1, "
                    f"in {counted(len(rows) - 1, 'sibling')} as {usual:.2f}, all on the other side of 1"
                )
                yield Finding("exchanged", text, row[3], sure=False)


def _only_exchanged(i: int, logs: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the ratio of a pair and the usual one if the pair is an outlier as it is, and none if exchanged."""
    own = logs[i][0] - logs[i][1]
    others = [a - b for n, (a, b) in enumerate(logs) if n != i]
    if len(others) < _JURY:
        return None
    middle = median_of.median(others)
    spread = max(0.02, 1.5 * median_of.median(abs(d - middle) for d in others))
    apart = all(d * middle > 0 for d in others) and own * middle < 0 and abs(middle) > 4 * spread
    if apart and abs(own - middle) > 6 * spread and abs(-own - middle) < 3 * spread:
        return 2**own, 2**middle
    return None
