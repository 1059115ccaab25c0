"""Name a rule by which an engine read entries of an axis, from the entries that it read at each place."""

from collections.abc import Callable, Iterator

import numpy as np

Rules = Iterator[tuple[str, np.ndarray]]

# (number of the place along something, number of entries, length of a run) -> the entry that is read there.
_RULES: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "the first's for all": lambda i, n, k: 0 * i,
    "the last's for all": lambda i, n, k: 0 * i + n - 1,
    "that of the one before": lambda i, n, k: i - 1,
    "that of the next": lambda i, n, k: i + 1,
    "that of the one before, in a circle": lambda i, n, k: (i - 1) % n,
    "that of the next, in a circle": lambda i, n, k: (i + 1) % n,
    "counted from the end": lambda i, n, k: n - 1 - i,
    "by the place along {axis}": lambda i, n, k: i,
    "by the place along {axis}, modulo {n}": lambda i, n, k: i % n,
    "that of the first of each {k} along {axis}": lambda i, n, k: i // k * k,
    "that of the last of each {k} along {axis}": lambda i, n, k: i // k * k + k - 1,
    "one for each {k} along {axis}": lambda i, n, k: i // k,
}
_RUNS = (2, 3, 4, 8, 16, 32)


def rules(shape: tuple[int, ...], n: int, axes: list[str], flat: dict[int, str]) -> Rules:
    """Yield (rule, entry read at each place), the simplest first.

    shape: of the places; n: number of entries; axes: what each axis of the places counts, "axis H"
    flat:  number of axes -> what these count together, "all rows"
    """
    places = np.indices(shape)
    numbers = {axes[a]: places[a] for a in reversed(range(len(shape))) if shape[a] > 1}
    for a, of in flat.items():
        if a > 1:
            own = np.arange(int(np.prod(shape[:a]))).reshape(*shape[:a], *(1,) * (len(shape) - a))
            numbers[of] = own + 0 * places[0]
    seen = set[bytes]()
    for phrase, rule in _RULES.items():
        for axis, i in numbers.items():
            for k in _RUNS if "{k}" in phrase else (1,):
                read = np.clip(rule(i, n, k), 0, n - 1)
                if read.tobytes() not in seen:
                    seen.add(read.tobytes())
                    yield phrase.format(axis=axis, n=n, k=k), read
