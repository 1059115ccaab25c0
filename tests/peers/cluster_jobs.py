"""Jobs for test_cluster.py, in a file that its workers can import."""

import os
import signal
import time
from pathlib import Path


def twice_after(seconds: float, number: int) -> list[int]:
    time.sleep(seconds)
    return [2 * number]


def kill_at(number: int, deadly: int, log: str) -> list[int]:
    """End the worker at one number, and leave a file of its process's name."""
    if number == deadly:
        Path(log, f"{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return [number]
