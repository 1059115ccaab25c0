"""What the user sees while a kernel compiles: `with compile_progress(): ...` around a command's work."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core.event import Listener, install_listener
from rich.console import Console

_PATIENCE = 1.0  # seconds of compilation that pass in silence


class _CompileStatus(Listener):
    """A listener of Numba's "numba:compile" events that shows the outermost kernel by name.

    On a terminal a status line, gone when the compilation ends; elsewhere one plain line in all.
    Loads from the disk cache are no events, so that a warm start shows nothing.
    """

    def __init__(self):
        self._console = Console(file=sys.stderr)
        self._status = self._console.status("")
        self._depth = 0
        self._spent = 0.0
        self._started = 0.0
        self._announced = False
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def on_start(self, event) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            name = event.data["dispatcher"].py_func.__name__
            self._status.update(f"compiling kernels (first run): {name} ...")
            self._started = time.monotonic()
            self._timer = threading.Timer(max(0.0, _PATIENCE - self._spent), self._show)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._spent += time.monotonic() - self._started
                self.close()

    def _show(self) -> None:
        with self._lock:
            if self._depth == 0:
                return
            if self._console.is_terminal:
                self._status.start()
            elif not self._announced:
                self._console.print("compiling kernels (first run; later starts load them from disk) ...")
            self._announced = True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._status.stop()


@contextmanager
def compile_progress() -> Iterator[None]:
    """Say on stderr which kernel compiles, once compiling has cost more than a second."""
    listener = _CompileStatus()
    with install_listener("numba:compile", listener):
        try:
            yield
        finally:
            listener.close()
