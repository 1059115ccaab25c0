"""Report the progress of a picture on stderr."""

import sys
import time

import numpy as np
from rich.console import Console

from refsd.pipelines.preview import TerminalPicture


class Report:
    """Prints lines to stderr, and on a terminal a live line for the current step."""

    def __init__(self, verbose: bool):
        self.verbose = verbose
        self.console = Console(file=sys.stderr, highlight=False, emoji=False)
        self.status = self.console.status("")
        self.last = time.monotonic()
        self.picture, self.steps = "", 0
        self.shown: np.ndarray | None = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        if self.verbose:
            self.say(text)

    def now(self, text: str) -> None:
        """Show the current activity until the next call, on a terminal only."""
        self.status.update(text if self.shown is None else TerminalPicture(self.shown, text))
        if self.console.is_terminal:
            self.status.start()

    def show(self, pixels: np.ndarray) -> None:
        """Show a picture, [H, W, 3] uint8, above the current activity, if the terminal can."""
        self.shown = pixels if TerminalPicture.fits(self.console) else None

    def took(self) -> float:
        """Return the seconds since the last call."""
        before, self.last = self.last, time.monotonic()
        return self.last - before

    def begin(self, picture: str, steps: int) -> None:
        """Begin a pass of a picture: "1/2"."""
        self.picture, self.steps = picture, steps
        self.step(0)

    def step(self, done: int) -> None:
        """Report that `done` steps are complete; off a terminal, print a line if it took over a second."""
        line = f"picture {self.picture}: step {done}/{self.steps}"
        if done:
            seconds = self.took()
            line += f", {seconds:.2f} s/it"
            if not self.console.is_terminal and (self.verbose or seconds > 1):
                self.say(line)
        self.now(line)
