"""Show progress on stderr: a bar or a changing line on a terminal, otherwise a line every ten seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refsd.numerics.printable import printable

PATIENCE = 2.0  # seconds before a bar appears
EVERY = 10.0  # seconds between lines


class Advance:
    """Count finished steps: call it with the name of each."""

    def __init__(self, what: str, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._what, self._total = what, total
        self._console = Console(file=sys.stderr)
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
        name = TextColumn("{task.fields[name]}", markup=False)
        self._bar = Progress(*columns, TimeRemainingColumn(), name, console=self._console, transient=True)
        self._task = self._bar.add_task(what, total=total, name="")
        self._begun = self._last = time.monotonic()
        self._counted = 0.0  # steps that the last line counted
        self._search_begun: float | None = None
        self._searched = 0.0  # seconds of searches since the last line
        self._has_searched = False
        self._hint = ""

    def __call__(self, name: str) -> None:
        self._bar.update(self._task, advance=1, name=name)
        now = time.monotonic()
        if self._search_begun is not None:
            self._searched += now - self._search_begun
            self._search_begun, self._has_searched = None, True
        if self._console.is_terminal:
            self._start(now)
        elif now - self._last > EVERY:
            done = self._bar.tasks[0].completed
            seconds = max(0.0, now - self._last - self._searched)
            seconds *= (self._total - done) / (done - self._counted)
            without = " without searches for causes" if self._has_searched else ""
            left = f", about {seconds:.0f} s left{without}" if self._counted and done < self._total else ""
            self._last, self._counted, self._searched = now, done, 0.0
            print(printable(f"{self._what}: {done:g} of {self._total}{left}, {name}"), file=sys.stderr, flush=True)

    def search(self) -> None:
        """Leave the seconds until the next finished step out of the estimate."""
        self._search_begun = time.monotonic()

    def show(self, text: str, hint: str = "") -> None:
        """Show a text beside the bar on a terminal, until the next step or text; a new hint in a line above it."""
        self._bar.update(self._task, name=text)
        self._start(time.monotonic())
        if hint and hint != self._hint:
            self._console.print(printable(hint), markup=False, highlight=False, soft_wrap=True)
        self._hint = hint

    def close(self) -> None:
        if self._bar.live.is_started:  # otherwise Rich prints an empty line if stderr is not a terminal
            self._bar.stop()

    def _start(self, now: float) -> None:
        if not self._bar.live.is_started and now - self._begun > PATIENCE:
            self._bar.start()


@contextmanager
def steps(what: str, total: int) -> Iterator[Advance]:
    """Show a bar of `total` steps. Yields an Advance to call with the name of each finished step.

    The bar appears after two seconds. If stderr is not a terminal, a line is printed every ten seconds; from the
    second on with the seconds that the remaining steps take if they take as long as those since the line before,
    because the first of all compile.
    """
    advance = Advance(what, total)
    try:
        yield advance
    finally:
        advance.close()


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
