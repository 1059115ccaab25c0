"""A bar on stderr for work that is counted in steps, shown once it has taken two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refsd.cli.bar import PATIENCE


@contextmanager
def steps(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yields what to call with the name of each step that is done. Nothing is shown where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    what_column = TextColumn("{task.description}", markup=False)
    columns = what_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(file=sys.stderr)
    progress = Progress(*columns, TextColumn("{task.fields[name]}", markup=False), console=console, transient=True)
    task = progress.add_task(what, total=total, name="")
    begun = time.monotonic()

    def advance(name: str) -> None:
        progress.update(task, advance=1, name=name)
        if console.is_terminal and not progress.live.is_started and time.monotonic() - begun > PATIENCE:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:  # else Rich prints an empty line where stderr is no terminal
            progress.stop()
