"""How far a picture is, on stderr."""

import sys
import time

import numpy as np
from rich.console import Console


class Report:
    """Lines on stderr, and on a terminal a live line for the step in progress."""

    def __init__(self, verbose: bool):
        self.verbose = verbose
        self.console = Console(file=sys.stderr, highlight=False, emoji=False)
        self.status = self.console.status("")
        self.last = time.monotonic()
        self.picture, self.steps = "", 0

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        if self.verbose:
            self.say(text)

    def now(self, text: str) -> None:
        """What is being done, until the next word; only on a terminal."""
        self.status.update(text)
        if self.console.is_terminal:
            self.status.start()

    def took(self) -> float:
        """Seconds since the last call."""
        before, self.last = self.last, time.monotonic()
        return self.last - before

    def on_step(self, i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        self.step(i + 1)

    def step(self, done: int) -> None:
        """So many of the picture's steps are done; off a terminal a line if the last took more than a second."""
        line = f"picture {self.picture}: step {done}/{self.steps}"
        if done:
            seconds = self.took()
            line += f", {seconds:.2f} s/it"
            if not self.console.is_terminal and (self.verbose or seconds > 1):
                self.say(line)
        self.now(line)
