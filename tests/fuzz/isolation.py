"""Inputs are tried in forked processes: one that aborts, hangs or wants memory is seen, named, and gone."""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from judgement import Outcome

GIB = 1 << 30
BATCH = 250  # inputs a process
SECONDS = 60  # an input may take; its kernels may have to be compiled
# Events that no reader of a file causes (Python's audit events).
EXECUTION = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pty.spawn", "socket.connect")
CANARY = "executed"


class Try(NamedTuple):
    """What became of input `index`."""

    index: int
    outcome: Outcome


def try_all(
    count: int, once: Callable[[int, Path], Outcome], start: int = 0, watch: bool = True, seconds: int = SECONDS
) -> Iterator[Try]:
    """once(index, an empty folder) for each index, in forked processes, in order.

    watch:   whether what runs a program is a failure
    seconds: that one input may take
    """
    at, end = start, start + count
    while at < end:
        last = at - 1
        for found in _batch(range(at, min(end, at + BATCH)), once, watch, seconds):
            last = found.index
            yield found
        at = last + 1


def _batch(
    indices: Sequence[int], once: Callable[[int, Path], Outcome], watch: bool, seconds: int
) -> Iterator[Try]:
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        code = 1
        try:
            _child(indices, once, writer, watch, seconds)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    began, told = indices[0], -1
    with os.fdopen(reader, "r") as lines:
        for line in lines:
            index, outcome = json.loads(line)
            if outcome is None:
                began = index
            else:
                told = index
                yield Try(index, Outcome(*outcome))
    _, status = os.waitpid(pid, 0)
    if status and told != indices[-1]:
        yield Try(began, Outcome("failure", f"the process died: {_death(status)}"))


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hung = ": no answer in time" if number == signal.SIGALRM else ""
        return f"{signal.Signals(number).name}{hung}"
    return f"exit code {os.WEXITSTATUS(status)}"


def _child(
    indices: Sequence[int], once: Callable[[int, Path], Outcome], writer: int, watch: bool, seconds: int
) -> None:
    executed: list[str] = []
    if watch:
        sys.addaudithook(lambda event, _: executed.append(event) if event.startswith(EXECUTION) else None)
    limited = False
    with tempfile.TemporaryDirectory(prefix="refsd-fuzz-") as scratch:
        for index in indices:
            _tell(writer, index, None)
            folder = Path(scratch) / str(index)
            folder.mkdir()
            os.chdir(folder)
            signal.alarm(seconds)  # not caught: what hangs in C dies too
            try:
                outcome = once(index, folder)
            except MemoryError:
                outcome = Outcome("failure", "it wants more than 1 GiB")
            except Exception:  # reported as a failure of the run
                outcome = Outcome("failure", "the fuzzer itself: " + traceback.format_exc(limit=-3))
            signal.alarm(0)
            if executed and watch:
                outcome = Outcome("failure", f"executed: {', '.join(sorted(set(executed)))}")
                executed.clear()
            if (folder / CANARY).exists() or (Path(scratch) / CANARY).exists():
                outcome = Outcome("failure", "executed: the canary is there")
            _tell(writer, index, outcome)
            os.chdir(scratch)
            _remove(folder)
            if not limited:  # after the first, which has loaded what is loaded once
                limited = True
                _limit_memory()


def _limit_memory() -> None:
    """This process may take 1 GiB more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + GIB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _tell(writer: int, index: int, outcome: Outcome | None) -> None:
    os.write(writer, json.dumps([index, outcome]).encode() + b"\n")


def _remove(folder: Path) -> None:
    for root, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(root, name))
        for name in folders:
            path = os.path.join(root, name)
            os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    folder.rmdir()


def elapsed(since: float) -> str:
    return f"{time.monotonic() - since:.0f} s"
