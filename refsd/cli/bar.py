"""A progress bar on stderr for work that takes more than two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refsd.progress.steps import PATIENCE


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` bytes are done. Yields a function to call with the bytes of each step.

    Shows nothing if stderr is not a terminal, or if the work takes less than two seconds.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()
    console = Console(file=sys.stderr)
    progress = Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True)
    task = progress.add_task(what, total=total)
    begun = time.monotonic()

    def advance(n: int) -> None:
        progress.advance(task, n)
        if console.is_terminal and not progress.live.is_started and time.monotonic() - begun > PATIENCE:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()
