"""Find the known bugs that make no difference to a component: they replace functions that its run does not call."""

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from refsd.networks.bugs import Change


class Calls:
    """Which functions of the models' modules a run calls, of those that some changes replace.

    run: runs the reference once
    """

    def __init__(self, changes: Iterable[Change], run: Callable[[], Any]):
        self._idle = {(page, name) for change in changes for page, name, _ in change.replaced}
        noted = tuple((page, name, self._noting(page, name)) for page, name in self._idle)
        with Change(replaced=noted).in_models():
            run()

    def _noting(self, page: ModuleType | type, name: str) -> Callable[..., Any]:
        right = getattr(page, name)

        @functools.wraps(right)
        def noting(*args, **kwargs):
            self._idle.discard((page, name))
            return right(*args, **kwargs)

        return noting

    def concern(self, change: Change) -> bool:
        """Return False if the change does nothing but replace functions that the run does not call."""
        if not change.replaced or change._replace(replaced=()) != Change():
            return True
        return any((page, name) not in self._idle for page, name, _ in change.replaced)
