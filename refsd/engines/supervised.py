"""Programs in sessions of their own that leave nothing running, neither when they end nor when refsd does."""

import marshal
import os
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

from refsd.golden.engine import EngineFailure

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
MAX_FILE = 4 << 30  # bytes that a file of a program may have unless it is known to need more
_PATIENCE = 6.0  # seconds in which the supervisor must have ended a program
_START = 60.0  # seconds in which it must have started one
_LONGEST_PAUSE = 0.2  # seconds between two looks at a running program


class Supervised:
    """One program at a time, under a supervisor process (supervisor.py) that serves one after the other."""

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

        command:     an absolute path, or a name to look for on the environment's PATH; and its arguments
        folder:      its working folder
        environment: all that it gets
        max_file:    bytes that any one file may have that it writes
        output:      where its stdout and stderr go

        Raises EngineFailure where the supervisor does not live. Whether the program can be executed, `poll` says.
        """
        if self._process is None:
            self._launch()
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        wanted = (list(map(os.fsencode, command)), os.fsencode(folder), variables, max_file)
        message = marshal.dumps(wanted)
        self._name, self._group = command[0], 0
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
        """Wait until the program and all that it started have ended -> its exit code, negative for a signal.

        look: called again and again meanwhile; what it raises ends the wait

        Raises EngineFailure after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        pause = 0.01
        while (code := self.poll(pause)) is None:
            if time.monotonic() > deadline:
                raise EngineFailure(f"no answer after {timeout:g} s")
            look()
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        return code

    def poll(self, seconds: float = 0.0) -> int | None:
        """The exit code; None while the program runs. Waits for it so many seconds at most.

        Raises EngineFailure where the program cannot be executed, or has killed its supervisor.
        """
        if self._running and (line := self._line(seconds)) is not None:
            if line == "":
                raise EngineFailure("it killed the process that supervises it")
            self._running = False
            word, number = line.split()
            if word == "refused":
                raise EngineFailure(f"{self._name} does not start: {os.strerror(int(number))}")
            self._code = int(number)
        return self._code

    def end(self) -> None:
        """End the program and all that it started, if it still runs."""
        with suppress(EngineFailure, BrokenPipeError):
            if self._running:
                self._socket.sendall(bytes(8))
                self.poll(_PATIENCE)
        if self._running and self._process:
            self._process.kill()
            self._finalizer()
            self._process = None
            if self._group:  # the supervisor did not live to end it
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
        """The supervisor's next line; "" where it has ended; None if none comes within so many seconds."""
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
    """Let a supervisor go: it ends what it runs, then itself."""
    connection.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def ending(code: int) -> str:
    """How a program ended, in words: "ended by SIGABRT", "ended with exit code 1"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"ended by signal {-code}"


def last_words(output: BinaryIO, start: int = 0) -> str:
    """The last line that a program wrote to `output`, from byte `start` on."""
    end = os.fstat(output.fileno()).st_size
    text = os.pread(output.fileno(), 4096, max(start, end - 4096)).decode(errors="replace")
    words = [line.strip() for line in text.splitlines() if line.strip()]
    return words[-1][-300:] if words else "it said nothing"
