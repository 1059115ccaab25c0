"""Progress on stderr: a bar of steps that are counted, a line of what was found; a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refsd.cli.bar import PATIENCE
from refsd.numerics.printable import printable

EVERY = 10.0  # seconds


@contextmanager
def steps(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yields what to call with the name of each step that is done.

    A bar shows once the work has taken two seconds; where stderr is no terminal, a line every ten.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    what_column = TextColumn("{task.description}", markup=False)
    columns = what_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(file=sys.stderr)
    progress = Progress(*columns, TextColumn("{task.fields[name]}", markup=False), console=console, transient=True)
    task = progress.add_task(what, total=total, name="")
    begun = last = time.monotonic()

    def advance(name: str) -> None:
        nonlocal last
        progress.update(task, advance=1, name=name)
        now = time.monotonic()
        if console.is_terminal:
            if not progress.live.is_started and now - begun > PATIENCE:
                progress.start()
        elif now - last > EVERY:
            last = now
            line = f"{what}: {progress.tasks[0].completed:g} of {total}, {name}"
            print(printable(line), file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        if progress.live.is_started:  # else Rich prints an empty line where stderr is no terminal
            progress.stop()


@contextmanager
def found_so_far(what: str) -> Iterator[Callable[[str], None]]:
    """Yields what to call with the state of a search whose end is not known.

    On a terminal a line that changes, once the search has taken two seconds; elsewhere a line every ten.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stderr)
    live = Live(console=console, transient=True, auto_refresh=False)
    begun = last = time.monotonic()

    def show(state: str) -> None:
        nonlocal last
        now = time.monotonic()
        line = printable(f"{what}: {state}")
        if console.is_terminal:
            if not live.is_started and now - begun > PATIENCE:
                live.start()
            if live.is_started:
                live.update(Text(line), refresh=True)
        elif now - last > EVERY:
            last = now
            print(line, file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if live.is_started:
            live.stop()
