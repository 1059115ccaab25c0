"""Find the functions that the reference runs; search with some of them changed, in a process of its own.

A changed function may do anything: overwrite shared data, or never end. So the search runs in a fork with little
memory and CPU, and only text comes back. Where processes cannot be forked (Windows), a new Python is started; there
only its CPU time is limited.
"""

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
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

import numpy as np

from refsd.golden.search_cuts import note_cut, slowness

_BYTES = 1 << 30
# The exit code of a process that ends itself because its CPU time is used up.
_LATE = 75


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

    _profiled(run, note)
    owners: dict[CodeType, FunctionType] = {}
    for one in gc.get_referrers(*codes) if codes else ():
        if isinstance(one, FunctionType) and one.__code__ in codes:
            owners.setdefault(one.__code__, one)
    return [owners[code] for code in codes if code in owners]


def results_of(function: FunctionType, run: Callable[[], Any]) -> dict[str, float]:
    """Return the numbers that a function's variables have when it first returns in a run, and "": its result."""
    found: dict[str, float] = {}

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "return" and frame.f_code is function.__code__ and not found:
            values = {**frame.f_locals, "": argument}
            found.update({k: float(v) for k, v in values.items() if isinstance(v, float) and v})

    _profiled(run, note)
    return found


def _profiled(run: Callable[[], Any], note: Callable[[Any, str, Any], None]) -> None:
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)


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
    """Raise TooLong in the block after this much CPU time; for use inside `apart`. Without timers, of wall time.

    seconds: of a Zen 4, as in golden/search_cuts.py
    """
    seconds *= slowness()
    if not hasattr(signal, "setitimer"):
        with _interrupted_after(seconds):
            yield
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def in_time(run: Callable[[], Any], seconds: float) -> Any:
    """Run; return None if changed code takes longer, or fails in any way; for use inside `apart`."""
    try:
        with np.errstate(all="ignore"), at_most(seconds):
            return run()
    except Exception:  # changed code may fail in any way: then it explains nothing
        return None


@contextlib.contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    this = ctypes.c_ulong(threading.get_ident())
    ended = threading.Lock()

    def late() -> None:
        if ended.acquire(blocking=False):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(this, ctypes.py_object(TooLong))

    timer = threading.Timer(seconds, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if not ended.acquire(blocking=False):
            time.sleep(0.01)  # TooLong is on its way: let it arrive inside the block


def apart(work: Callable[..., Iterator[list]], seconds: float, *arguments: Any) -> list[list]:
    """Return what `work(*arguments)` yields in another process, until it ends or has used its CPU time.

    The cut of a process that its limit of time ends is noted (golden/search_cuts.py), but not that of one that dies
    otherwise or cannot be started.

    seconds: of a Zen 4, as in golden/search_cuts.py
    work: yields lists that JSON can hold. Where processes cannot be forked, it and the arguments must be picklable.
    """
    start = _forked if hasattr(os, "fork") and resource is not None else _spawned
    text, late = start(work, seconds * slowness(), arguments)
    if late:
        note_cut(seconds)
    whole = text.decode(errors="ignore").splitlines() if text.endswith(b"\n") else text.decode().splitlines()[:-1]
    return [json.loads(line) for line in whole]


def _patience(seconds: float) -> float:
    """Return for how many seconds of wall time to wait for a process: other processes may keep the cores busy."""
    return 10 * seconds + 5


def _forked(work: Callable[..., Iterator[list]], seconds: float, arguments: tuple) -> tuple[bytes, bool]:
    """Run the work in a fork. -> what it printed, whether its time was up"""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the child does not use
        child = os.fork()
    if not child:
        os.close(reader)
        _work(work, arguments, writer, seconds)
    os.close(writer)
    try:
        text, late = _read(reader, _patience(seconds))
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text, late or code == -signal.SIGXCPU


def _spawned(work: Callable[..., Iterator[list]], seconds: float, arguments: tuple) -> tuple[bytes, bool]:
    """Run the work in a new Python. -> what it printed, whether its time was up"""
    code = f"from {__name__} import answer_parent; answer_parent()"
    given = pickle.dumps((work, seconds, arguments))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_patience(seconds),
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return late.stdout or b"", True
    except OSError:  # no process can be started
        return b"", False
    return done.stdout, done.returncode == _LATE


def answer_parent() -> None:
    """Do what the parent process asks for on stdin; answer on stdout. Runs in the process that `apart` starts."""
    work, seconds, arguments = pickle.load(sys.stdin.buffer)
    _work(work, arguments, os.dup(1), seconds)


def _work(work: Callable[..., Iterator[list]], arguments: tuple, writer: int, seconds: float) -> None:
    try:
        faulthandler.disable()  # kernels with changed arguments may write anywhere, and end this process
        for number in (0, 1, 2):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
        _limits(seconds)
        for found in work(*arguments):
            os.write(writer, json.dumps(found).encode() + b"\n")
    except BaseException:  # whatever a changed formula does ends here
        pass
    finally:
        os._exit(0)


def _limits(seconds: float) -> None:
    own = int(time.process_time() + seconds) + 2
    if resource is None:
        threading.Thread(target=_end_at, args=(own,), daemon=True).start()
        return

    def late(number: int, frame: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGVTALRM, late)
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, used + _BYTES))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # The kernel sends SIGXCPU at the first limit only if the second, at which it kills, is not reached, too.
        resource.setrlimit(resource.RLIMIT_CPU, (own, own + 1))


def _end_at(seconds: float) -> None:
    """End this process when it has used so much CPU time."""
    while time.process_time() < seconds:
        time.sleep(0.1)
    os._exit(_LATE)


def _read(reader: int, seconds: float) -> tuple[bytes, bool]:
    """Read until the other end is closed, or for this many seconds. -> what was read, whether the time was up"""
    until, text = time.monotonic() + seconds, b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        more = os.read(reader, 1 << 16)
        if not more:
            return text, False
        text += more
    return text, True
