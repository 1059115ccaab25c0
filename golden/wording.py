"""The wording of messages: a number with its noun, and the known name that was probably meant."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator

from refsd.numerics.errors import BadInput


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: counted(1, "engine") -> "1 engine"; counted(7, "answer") -> "7 answers"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ' (did you mean "conv2d"?)' for a name that is like a known one, else nothing."""
    names = {one.lower(): one for one in known}
    same = [one for one in names.values() if _spelled_alike(one) == _spelled_alike(str(name))]
    if same:
        return f' (did you mean "{same[0]}"?)'
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    return f' (did you mean "{names[near[0]]}"?)' if near else ""


def _spelled_alike(name: str) -> str:
    """Return a name without what spellings differ in: "dpm++_2m" and "dpmpp2m" are one."""
    return "".join(letter for letter in name.lower().replace("+", "p") if letter.isalnum())


def how_to_install(extra: str) -> str:
    """Return how to install an extra of refsd, which is in no package index: from its clone."""
    return f"in refsd's clone: uv sync --extra {extra}, or pip install -e '.[{extra}]'"


@contextlib.contextmanager
def needing(packages: Iterable[str], extra: str, who: str) -> Iterator[None]:
    """Turn a missing package of an extra into BadInput, which says how to install it: around imports."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in packages:
            raise
        raise BadInput(f"{who} needs {' and '.join(packages)}: {how_to_install(extra)}") from None
