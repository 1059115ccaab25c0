"""Say on stderr for whom refsd waits, a line every ten seconds; on a terminal the progress bar shows it."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from refsd.numerics.printable import printable
from refsd.progress.steps import EVERY


@contextmanager
def waiting(what: str, limit: float | None = None, every: float = EVERY) -> Iterator[None]:
    """Print "waiting for WHAT, 10 s of 600" while the block runs. limit: seconds that it may take, if known"""
    if sys.stderr.isatty():
        yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(every):
            most = f" of {limit:g}" if limit is not None else ""
            line = f"waiting for {what}, {time.monotonic() - begun:.0f} s{most}"
            print(printable(line), file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
