"""Take out of a report what tells of its machine's user: folders, and the user's and the machine's name."""

import getpass
import platform
import re
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

# A path from the root or a home, with two parts at least: "/home/me/libggml.so", "~/x/y", "C:\\Users\\me\\x".
_PATH = re.compile(r"(?<![\w./~-])(?:file://|~|[A-Za-z]:)?(?:[/\\][\w.+@~-]+){2,}[/\\]?")
# Names that a word of a report may well be.
_COMMON = {"root", "user", "admin", "runner", "build", "test", "localhost"}
_SHORTEST = 4


def scrubber() -> Callable[[Any], Any]:
    """Return a function that scrubs all texts of a structure of dicts and lists. Keys stay as they are.

    Of a path the last part stays.
    """
    host = platform.node()
    words = [re.escape(name) for name in {_user(), host, host.partition(".")[0]} if _telling(name)]
    named = re.compile(rf"\b(?:{'|'.join(sorted(words))})\b") if words else None
    home = str(Path.home())

    def scrub(value: Any) -> Any:
        if isinstance(value, str):
            if "/" in value or "\\" in value:
                value = _PATH.sub(_last, value.replace(f"{home}/", "~/home/") if len(home) > 1 else value)
            return named.sub("...", value) if named is not None else value
        if isinstance(value, dict):
            return {key: scrub(of) for key, of in value.items()}
        return [scrub(of) for of in value] if isinstance(value, list) else value

    return scrub


def _telling(name: str) -> bool:
    return len(name) >= _SHORTEST and name.lower() not in _COMMON


def _last(path: re.Match) -> str:
    return PurePath(path[0].replace("\\", "/")).name


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
