"""Orders in which the parts of a tensor's last axis, as of a modulation or of fused q, k and v, may be read."""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

# Into how many parts a tensor may be split, and for how many heads.
PARTS, _HEAD_COUNTS = (2, 3, 4, 6), (2, 3, 4, 6, 8, 12, 16, 24)


def roles(y: np.ndarray, **taken: np.ndarray) -> dict[int, str] | None:
    """Return which part of each three, or two, of a modulation is what: {0: "shift"}; None if it is of another.

    taken: shift and scale, as an operation takes them
    """
    where: dict[str, tuple[int, int]] = {}
    for count in (count for count in reversed(PARTS) if y.shape[-1] % count == 0):
        for k, part in enumerate(np.split(np.asarray(y, np.float32), count, axis=-1)):
            where |= {name: (k, count) for name, own in taken.items() if alike(part, own)}
    if len(where) < len(taken):
        return None
    size = 3 if where["shift"][1] % 3 == 0 else 2
    known = {k % size: name for name, (k, _) in where.items()}
    return known | {k: "gate" for k in range(size) if k not in known}


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Return True for one tensor, whatever its shape and the precision in which it was computed."""
    return one.size == other.size and np.allclose(one.ravel(), other.ravel(), rtol=1e-4, atol=1e-5)


def part_orders(n: int, roles: Mapping[int, str] | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, number that is read at each of n places) of the parts of an axis, the likeliest first.

    roles: of a modulation, number of the part in its three or two -> what it is: "shift"
    """
    i, size, one_sided = np.arange(n), len(roles or ()), {}
    for count in (count for count in (6, 4, 3, 2) if size > 1 and count % size == 0 and n % count == 0):
        parts = i.reshape(count // size, size, -1)
        for order in [*itertools.permutations(range(size))][1:]:
            named = ", ".join((roles or {})[order.index(k)] for k in range(size))
            yield f"the modulation's parts are read in the order {named}", parts[:, order].ravel()
    for count in (count for count in PARTS if n % count == 0):
        parts, of = i.reshape(count, -1), f"of the {count} of {{}}"
        for a, b in itertools.combinations(range(count), 2):
            ways = {f"parts {a + 1} and {b + 1} {of} are exchanged": {a: b, b: a}}
            if count < 4:  # an exchange shows at the earlier part, which is read first
                one, other = (f"part {k + 1} {of} is read where part {j + 1} lies" for k, j in ((a, b), (b, a)))
                ways = {other: {b: a}, **ways}
                one_sided[one] = parts[[b if k == a else k for k in range(count)]].ravel()
            for words, read in ways.items():
                yield words, parts[[read.get(k, k) for k in range(count)]].ravel()
        for words, order in (("2, 3, 1", [1, 2, 0]), ("3, 1, 2", [2, 0, 1])) if count == 3 else ():
            yield f"of {{}}, split in 3, parts {words} are read for 1, 2, 3", parts[order].ravel()
        if n > count:
            all_parts = f"the {count} parts of {{}}"
            yield f"{all_parts} are read interleaved", i.reshape(-1, count).T.ravel()
            yield f"{all_parts}, which are interleaved, are read one behind the other", parts.T.ravel()
    for heads in (h for h in _HEAD_COUNTS if n % (3 * h) == 0 and n > 3 * h):
        turned = i.reshape(heads, 3, -1).swapaxes(0, 1).ravel()
        one, other = f"[{heads}, 3, {n // (3 * heads)}]", f"[3, {heads}, {n // (3 * heads)}]"
        yield f"{{}} is split as {one}: 3 parts of each head, not as {other}", turned
        yield f"{{}} is split as {other}: heads of each part, not as {one}", turned.argsort()
    yield from one_sided.items()


def apart(*names: str) -> list[str]:
    """Return the names of tensors without the modules that all of them have in common."""
    split = [name.split(".") for name in names]
    same = next(i for i, parts in enumerate(zip(*([*of, ""] for of in split), strict=False)) if len({*parts}) > 1)
    return [".".join(parts[same:]) for parts in split]
