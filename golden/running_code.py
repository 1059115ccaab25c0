"""Find the functions that the reference runs; search with some of them changed, in a process of its own.

A changed function may do anything: overwrite shared data, or never end. So the search runs in a fork with little
memory and CPU, and only text comes back.
"""

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

try:
    import resource
except ImportError:  # not on every system
    resource = None

_BYTES = 1 << 30


class TooLong(Exception):
    """A run of changed code has used up its CPU time."""


def executed(run: Callable[[], Any], known: Callable[[str], bool]) -> list[FunctionType]:
    """Return the functions that a run calls, in the order of their first calls.

    known: a module's name -> whether its functions count
    """
    codes: dict[CodeType, None] = {}

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and known(frame.f_globals.get("__name__", "")):
            codes.setdefault(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    owners: dict[CodeType, FunctionType] = {}
    for one in gc.get_referrers(*codes) if codes else ():
        if isinstance(one, FunctionType) and one.__code__ in codes:
            owners.setdefault(one.__code__, one)
    return [owners[code] for code in codes if code in owners]


@contextlib.contextmanager
def swapped(function: FunctionType, code: CodeType | None, defaults: tuple | None = None) -> Iterator[None]:
    """Give the function other code or defaults within the block; for use inside `apart`."""
    right = function.__code__, function.__defaults__
    try:
        if code is not None:
            function.__code__ = code
        if defaults is not None:
            function.__defaults__ = defaults
        yield
    finally:
        function.__code__, function.__defaults__ = right


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after this much CPU time; for use inside `apart`."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def apart(work: Callable[[], Iterator[list]], seconds: float) -> list[list]:
    """Return what `work` yields in a forked process, until it ends or has used this much CPU time.

    work: yields lists that JSON can hold. Where processes cannot be forked, the result is empty.
    """
    if not hasattr(os, "fork") or resource is None:
        return []
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the child does not use
        child = os.fork()
    if not child:
        os.close(reader)
        _work(work, writer, seconds)
    os.close(writer)
    try:
        text = _read(reader, 10 * seconds + 5)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    whole = text.decode(errors="ignore").splitlines() if text.endswith(b"\n") else text.decode().splitlines()[:-1]
    return [json.loads(line) for line in whole]


def _work(work: Callable[[], Iterator[list]], writer: int, seconds: float) -> None:
    try:
        for number in (0, 1, 2):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
        _limits(seconds)
        for found in work():
            os.write(writer, json.dumps(found).encode() + b"\n")
    except BaseException:  # whatever a changed formula does ends here
        pass
    finally:
        os._exit(0)


def _limits(seconds: float) -> None:
    def late(number: int, frame: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGVTALRM, late)
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, used + _BYTES))
    own = int(time.process_time() + seconds) + 2
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (own, own))


def _read(reader: int, seconds: float) -> bytes:
    """Read until the other end is closed, or for this many seconds."""
    until, text = time.monotonic() + seconds, b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        more = os.read(reader, 1 << 16)
        if not more:
            break
        text += more
    return text
