"""Say on stderr for whom refsd waits, every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refsd.numerics.printable import printable
from refsd.progress.steps import EVERY


@contextmanager
def waiting(
    what: str,
    limit: float | None = None,
    every: float = EVERY,
    hint: Callable[[], str] = lambda: "",
    show: Callable[[str, str], None] | None = None,
) -> Iterator[None]:
    """Print "WHAT, 10 s of 600" every ten seconds while the block runs. what: "waiting for ggml, silu/f32"

    limit: seconds that it may take, if known
    hint:  returns why it may wait in vain; "" if nothing is known
    show:  shows the line and the hint on a terminal, with its progress bar; None: nothing is shown on a terminal
    """
    terminal = sys.stderr.isatty()
    if terminal and show is None:
        yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(every):
            most = f" of {limit:g}" if limit is not None else ""
            why = hint()
            line = printable(f"{what}, {time.monotonic() - begun:.0f} s{most}")
            if show is not None and terminal:
                show(line, f"{what}: {why}" if why else "")
            else:
                print(f"{line}{why and f': {printable(why)}'}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
