"""Caches that skip work in some steps: declared approximations that change the numbers, each by its published rule.

A file a cache. Each decides from the states that it sees whether to compute, and answers from what it kept if not.
The reference follows the same rule in its own arithmetic, so that an engine's cache is judged against the rule, and
its drift is measured against the run without it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.caches.cache import Cache, Steps
from refsd.caches.dbcache import DBCache
from refsd.caches.easycache import EasyCache
from refsd.caches.first_block import FirstBlockCache
from refsd.caches.magcache import MagCache
from refsd.caches.options import read_options
from refsd.caches.taylorseer import TaylorSeer
from refsd.caches.teacache import TeaCache
from refsd.caches.ucache import UCache
from refsd.numerics.errors import BadInput

CACHES: Mapping[str, type[Cache]] = {
    "easycache": EasyCache,
    "ucache": UCache,
    "dbcache": DBCache,
    "first-block": FirstBlockCache,
    "taylorseer": TaylorSeer,
    "teacache": TeaCache,
    "magcache": MagCache,
}


class CacheSettings(NamedTuple):
    """A cache by its name and all its options."""

    name: str
    options: Mapping[str, float | tuple[float, ...]]

    @property
    def kind(self) -> type[Cache]:
        return CACHES[self.name]

    def start(self, steps: Steps) -> Cache:
        """Return the cache for one picture, with nothing kept."""
        return self.kind(steps, **self.options)

    def __str__(self) -> str:
        table = self.kind.measured
        default = [table] if table and self.options[table] == self.kind.options[table].default else []
        words = [f"{name}={_words(value)}" for name, value in self.options.items() if name not in default]
        return f"{self.name}:{' '.join(words)}"


def _words(value: float | tuple[float, ...]) -> str:
    """Format a value as the command line reads it, without commas."""
    return "/".join(f"{one:g}" for one in value) if isinstance(value, tuple) else f"{value:g}"


def read_cache(flag: str, name: str, options: str) -> CacheSettings:
    """Read a cache's name and its options as sd-cli does, threshold=0.2,start=0.15.

    flag: named in errors. Raises BadInput for a name, an option or a value that is unknown or out of range.
    """
    if name not in CACHES:
        raise BadInput(f"{flag} {name[:60]}: expected one of {', '.join(CACHES)}")
    return CacheSettings(name, read_options(f"{flag} {name}", CACHES[name], options))
