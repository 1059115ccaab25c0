"""Show on stderr that kernels are being compiled, and how many: `with compile_progress(): ...`."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core.event import Listener, install_listener
from rich.console import Console

_PATIENCE = 1.0  # seconds of compilation before anything is shown


class _Compilations(Listener):
    """Count compilations and show the count: on a terminal in a status line, else in one line at start and end.

    Kernels from the disk cache cause no event, so a warm start shows nothing.
    """

    count = 0  # of the whole process; a later `with` continues from it

    def __init__(self):
        self._console = Console(file=sys.stderr, highlight=False)
        self._status = self._console.status("")
        self._before = _Compilations.count
        self._depth = 0
        self._spent = 0.0
        self._started = 0.0
        self._name = ""
        self._shown = False
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def on_start(self, event) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            self._name = event.data["dispatcher"].py_func.__name__
            self._status.update(self._line())
            self._started = time.monotonic()
            self._timer = threading.Timer(max(0.0, _PATIENCE - self._spent), self._show)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event) -> None:
        with self._lock:
            _Compilations.count += 1
            self._depth -= 1
            if self._depth:
                self._status.update(self._line())
                return
            self._spent += time.monotonic() - self._started
            self._stop()

    def _line(self) -> str:
        return f"compiling kernels: {_Compilations.count} so far, now {self._name} ..."

    def _show(self) -> None:
        with self._lock:
            if self._depth == 0:
                return
            if self._console.is_terminal:
                self._status.start()
            elif not self._shown:
                self._console.print(self._line(), soft_wrap=True)
            self._shown = True

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._status.stop()

    def close(self) -> None:
        with self._lock:
            self._stop()
            if self._shown:
                count = _Compilations.count - self._before
                self._console.print(f"kernels compiled: {count}, in {self._spent:.0f} s", soft_wrap=True)


@contextmanager
def compile_progress() -> Iterator[None]:
    """Show how many kernels are compiled in the `with` block, once compiling has taken more than a second."""
    listener = _Compilations()
    with install_listener("numba:compile", listener):
        try:
            yield
        finally:
            listener.close()
