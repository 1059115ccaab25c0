"""Run programs in sessions of their own; no process of theirs outlives the program or refsd."""

import errno
import marshal
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from refsd.golden.engine import EngineDied, EngineFailure
from refsd.numerics.printable import printable

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
MAX_FILE = 4 << 30  # default limit in bytes of any file that a program writes
_PATIENCE = 6.0  # seconds in which the supervisor must end a program
_START = 60.0  # seconds in which the supervisor must start a program
TAIL = 16384  # bytes that are kept for a program's last words
_LONGEST_PAUSE = 0.2  # longest pause between two calls of `look`, in seconds


class Supervised:
    """Run programs, one at a time, under one supervisor process (supervisor.py)."""

    def __init__(self):
        self._process: subprocess.Popen | None = None
        self._running = False

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        max_file: int,
        output: BinaryIO,
        stdin: BinaryIO | None = None,
    ) -> None:
        """Start a program; `end` must follow.

        command:     the program, as an absolute path or a name on the environment's PATH, and its arguments
        folder:      the working folder
        environment: the complete environment
        max_file:    limit in bytes of any file that the program writes
        output:      receives stdout and stderr; a file if `wait` is called
        stdin:       None: empty

        Raises EngineFailure if the supervisor has ended. A program that cannot be executed raises in `poll`.
        """
        if self._process is None:
            self._launch()
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        wanted = (list(map(os.fsencode, command)), os.fsencode(folder), variables, max_file)
        message = marshal.dumps(wanted)
        self._name, self._group, self._output = command[0], 0, output
        self._code: int | None = None
        self._running = True
        with open(os.devnull, "rb") as nothing, suppress(BrokenPipeError):
            descriptors = [(stdin or nothing).fileno(), output.fileno()]
            socket.send_fds(self._socket, [len(message).to_bytes(8, "little")], descriptors)
            self._socket.sendall(message)
        line = self._line(_START)
        if not line:
            self.end()
            raise EngineFailure(f"{self._name} does not start: its supervisor ended")
        self._group = int(line.removeprefix("started "))

    def wait(self, timeout: float, look: Callable[[], None] = lambda: None) -> int:
        """Wait until the program and all its descendants have ended. -> its exit code, negative for a signal

        look: called repeatedly while waiting; an exception from it ends the wait

        Raises EngineDied, with the last lines that were printed, after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        pause = 0.01
        while (code := self.poll(pause)) is None:
            if time.monotonic() > deadline:
                raise late(timeout, tail(self._output))
            look()
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        return code

    def poll(self, seconds: float = 0.0) -> int | None:
        """Wait at most `seconds` for the program's end and return its exit code; None while it runs.

        Raises EngineFailure if the program could not be executed, or has killed its supervisor.
        """
        if self._running and (line := self._line(seconds)) is not None:
            if line == "":
                raise EngineFailure("it killed the process that supervises it")
            self._running = False
            word, number = line.split()
            if word == "refused":
                raise EngineFailure(f"{self._name} does not start: {_obstacle(self._name, int(number))}")
            self._code = int(number)
        return self._code

    def end(self) -> None:
        """Kill the program and all its descendants, if it still runs."""
        with suppress(EngineFailure, BrokenPipeError):
            if self._running:
                self._socket.sendall(bytes(8))
                self.poll(_PATIENCE)
        if self._running and self._process:
            self._process.kill()
            self._finalizer()
            self._process = None
            if self._group:  # the supervisor is dead and cannot end the program
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._group, signal.SIGKILL)
            self._running = False

    def _launch(self) -> None:
        self._said = b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._finalizer = weakref.finalize(self, _dismiss, self._process, self._socket)

    def _line(self, seconds: float) -> str | None:
        """Read the supervisor's next line; "" if the supervisor has ended; None if none comes within `seconds`."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while b"\n" not in self._said:
            if not poll.poll(1000 * seconds):
                return None
            try:
                more = self._socket.recv(4096)
            except ConnectionResetError:
                more = b""
            if not more:
                return ""
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()


def _dismiss(process: subprocess.Popen, connection: socket.socket) -> None:
    """Close the connection, upon which the supervisor ends its program and itself.

    An interrupt (a second Ctrl-C) ends the wait alone: from a finalizer no exception reaches anybody.
    """
    connection.close()
    try:
        process.wait(_PATIENCE)
    except KeyboardInterrupt:
        return
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _obstacle(name: str, number: int) -> str:
    """Return the system's words for an error number of exec, with what the user can do about it."""
    words, there = os.strerror(number), os.path.isfile(name)
    if number == errno.ENOEXEC:
        return f"{words}: it has no #! line; add one, or write its interpreter before it, as in exec:python3 FILE"
    if number == errno.EACCES and there and not os.access(name, os.X_OK):
        return (
            f"{words}: it is not executable; chmod +x, or write its interpreter before it, as in exec:python3 FILE"
        )
    if number == errno.ENOENT and there:
        with open(name, "rb") as file:
            line = file.readline(256)
        interpreter = line[2:].decode(errors="replace").strip(" \n")
        if line.startswith(b"#!"):
            return f"{words}: the file is there, but not its interpreter, {interpreter!r}"
    return words


def ending(code: int) -> str:
    """Describe how a program ended: "ended by SIGABRT", "ended with exit code 1"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"ended by signal {-code}"


def tail(output: BinaryIO, start: int = 0) -> bytes:
    """Return the end of what a program wrote to `output` after byte `start`."""
    end = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), TAIL, max(start, end - TAIL))


def died(how: str, printed: bytes) -> EngineDied:
    """Return the error of a program that died. how: "ended by SIGABRT"; printed: the end of its output"""
    return EngineDied(f"{how}: {last_words(printed)}", last_lines(printed))


def late(timeout: float, printed: bytes, hint: str = "") -> EngineDied:
    """Return the error of a program that gave no answer within `timeout` seconds.

    printed: the end of its output; hint: the probable reason
    """
    return EngineDied(f"no answer after {timeout:g} s{hint and f': {hint}'}", last_lines(printed))


def last_lines(printed: bytes) -> list[str]:
    """Return the last lines that are not blank, 20 at most."""
    return _lines(printed)[-20:]


def _lines(printed: bytes) -> list[str]:
    lines = [" ".join(line.split()) for line in printed.decode(errors="replace").splitlines()]
    return [printable(line[:300]) for line in lines if line]


# A line of a stack: "at Engine.main(Engine.java:134)", "... 3 more", "7: 0xe1 node::Abort() [node]", "#2 0xe1".
_STACK = re.compile(
    r"(?:at .*\(.*\)|at \S+:\d+:\d+|\.\.\. \d+ more|-+ \w+ stack trace -+|(?:#\d+|\d+:) .*[\])0-9])$"
)
# Go, Rust, C++: the line that begins with the reason, however long the stack below it is.
_REASONS = ("^panic: ", "^fatal error: ", "panicked at", r"what\(\):", "terminate called")


def last_words(printed: bytes) -> str:
    """Return the line that says why a program ended, where a runtime prints one; else the last, if any.

    Go prints the reason after "panic:", Rust in the line after "panicked at", C++ after "what():"; Java and
    JavaScript above the lines of the stack, the last cause last; Node.js below a caret, with its version as the
    last line; Python prints it last.
    """
    lines = _lines(printed)
    for words in _REASONS:
        for i, line in enumerate(lines):
            if re.search(words, line):
                after = lines[i + 1 : i + 2] if line.endswith(":") else []
                return " ".join([line, *after])
    carets = [i for i, line in enumerate(lines[:-1]) if set(line) == {"^"}]
    if carets and lines[-1].startswith("Node.js v"):
        return lines[carets[-1] + 1]
    if lines and _STACK.match(lines[-1]):
        return next((line for line in reversed(lines) if not _STACK.match(line)), lines[-1])
    return lines[-1] if lines else "it said nothing"
