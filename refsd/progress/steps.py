"""Show progress on stderr: a bar or a changing line on a terminal, otherwise a line every ten seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refsd.numerics.printable import printable

PATIENCE = 2.0  # seconds before a bar appears
EVERY = 10.0  # seconds between lines


@contextmanager
def steps(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar of `total` steps. Yields a function to call with the name of each finished step.

    The bar appears after two seconds. If stderr is not a terminal, a line is printed every ten seconds; from the
    second on with the seconds that the remaining steps take if they take as long as those since the line before,
    because the first of all compile.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    what_column = TextColumn("{task.description}", markup=False)
    columns = what_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(file=sys.stderr)
    progress = Progress(*columns, TextColumn("{task.fields[name]}", markup=False), console=console, transient=True)
    task = progress.add_task(what, total=total, name="")
    begun = last = time.monotonic()
    told = 0.0  # steps that the last line counted

    def advance(name: str) -> None:
        nonlocal last, told
        progress.update(task, advance=1, name=name)
        now = time.monotonic()
        if console.is_terminal:
            if not progress.live.is_started and now - begun > PATIENCE:
                progress.start()
        elif now - last > EVERY:
            done = progress.tasks[0].completed
            seconds = (now - last) * (total - done) / (done - told)
            left = f", about {seconds:.0f} s left" if told and done < total else ""
            last, told = now, done
            line = f"{what}: {done:g} of {total}{left}, {name}"
            print(printable(line), file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        if progress.live.is_started:  # otherwise Rich prints an empty line if stderr is not a terminal
            progress.stop()


@contextmanager
def found_so_far(what: str) -> Iterator[Callable[[str], None]]:
    """Show the state of a search of unknown length. Yields a function to call with the state as text.

    A changing line appears after two seconds. If stderr is not a terminal, a line is printed every ten seconds.
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
