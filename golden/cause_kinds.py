"""Tell which causes of several cases are one: without the numbers of a case, and as tails of whole blocks."""

import math
import re
from collections.abc import Iterator

BLOCKS = (4, 8, 16, 32, 64, 128, 256)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# What a formula of sizes comes to in one case: "scale is 1/sqrt(L) = 0.2236, not 0.1768".
IN_A_CASE = re.compile(r"(sqrt\([^)]*\)|\^\([^)]*\)|1/\([^)]*\)) = [^ ]+, not [^ ]+$")
# What a loop over whole blocks leaves: as long as the case has it, and of as many sizes of blocks as leave so much.
_TAIL = re.compile(
    r"the last \d+ of \d+ along (axis \d+(?: \(\w+\))?|[^,]+), after the last whole block of "
    r"((?:\d+, )*\d+(?: or \d+)?)"
)
# The last slice of one axis, or of several: where each is 2 long, "items from 1 on" are it.
_PART = r"(?:items from 1 on of|the last 1 of \d+ along) axis \d+(?: \(\w+\))?"
_LAST = re.compile(rf"(?=.*the last 1 of ){_PART}(?:(?:, | and ){_PART})*(?:, after the last whole block .*)?$")
# A whole number that is one off: of the diagonals of two cases both may be.
_ONE_OFF = re.compile(r"(\w+) is (-?\d+), not (-?\d+)")
# Numbers of a cause that are measured in the case: "1.56 roundings", "a factor of its own, 1.0048 to 1.1529".
_MEASURED = re.compile(r"\d\.\d|\de[+-]?\d| roundings")


def tails(n: int, where: str) -> Iterator[tuple[int, str]]:
    """Yield (start, words) for each tail that whole blocks leave of n; start 0 where they are longer than n."""
    starts: dict[int, list[str]] = {}
    for block in BLOCKS:
        if n % block:
            starts.setdefault(n // block * block, []).append(str(block))
    for start, sizes in starts.items():
        of = " or ".join(filter(None, [", ".join(sizes[:-1]), sizes[-1]]))
        yield start, f"the last {n - start} of {n} along {where}, after the last whole block of {of}"


def tails_of(name: str, shape: tuple[int, ...], axes: list[str]) -> Iterator[tuple[tuple[int, ...], int, int, str]]:
    """Yield (shape in which to cut, axis, start, words) for what whole blocks leave of an axis, and of all rows.

    axes: the letters of an input's axes; those before the first that has one are rows
    """
    lead = next((i for i, letter in enumerate(axes) if letter), 0)
    rows = [((math.prod(shape[:lead]), *shape[lead:]), 0, "rows")] if lead else []
    own = ((shape, a, f"the axis {axes[a] or a}") for a in range(lead == 1, len(shape)))
    for whole, axis, where in [*rows, *own]:
        for start, words in tails(whole[axis], where):
            yield whole, axis, start, f"{name}: {words}, not read"


def is_all(cause: str) -> bool:
    """Return True if a cause's tail is all that there is."""
    return re.search(r"the last (\d+) of \1 along", cause) is not None


def measures(cause: str) -> bool:
    """Return True if a cause tells numbers that each case has for itself."""
    return _TAIL.search(cause) is None and _MEASURED.search(IN_A_CASE.sub(r"\1", cause)) is not None


def kinds(cause: str) -> list[str]:
    """Return a cause without the numbers of its case: for each size of blocks that fits, and as the last slice."""
    tail = _TAIL.search(cause)
    last = [_LAST.sub("the last slice of an axis", cause)] if _LAST.search(cause) else []
    if tail is None:
        plain = IN_A_CASE.sub(r"\1", cause)
        one = _ONE_OFF.fullmatch(cause)
        off = int(one[2]) - int(one[3]) if one else 0
        last += [f"{one[1]} is 1 too {'large' if off > 0 else 'small'}"] if one and abs(off) == 1 else []
        return [NUMBER.sub("#", plain) if measures(cause) else plain, *last]
    of = "the slices of an axis" if tail[1].startswith("axis") else tail[1]
    return [_TAIL.sub(f"{of} after the last whole block of {b}", cause) for b in NUMBER.findall(tail[2])] + last
