"""Run a native engine in a separate process: if it aborts, refsd reports its last log line and continues."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

from refsd.engines.frames import read_message, write_message
from refsd.engines.relocation import environment
from refsd.engines.supervised import died, ending, late, tail
from refsd.golden.engine import EngineFailure
from refsd.numerics.tensor import StoredTensor


class Worker:
    """A Python process that answers requests with `serve`.

    arguments: Python's command line; the module that it names must call `serve`
    timeout:   seconds allowed for one request

    The process starts at the first request, and again after it has died.
    """

    def __init__(self, arguments: list[str], timeout: float = 300.0):
        self.command = [sys.executable, "-P", *arguments]
        self.timeout = timeout
        self._process: subprocess.Popen | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the worker)
        self._log_start = 0  # byte at which the lines of the current process begin
        weakref.finalize(self, self._log.close)

    def ask(
        self, header: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        """Send a request, wait for its answer. Raises EngineFailure if the process dies or reports an error."""
        process = self._alive()
        log_start = os.fstat(self._log.fileno()).st_size
        timed_out = threading.Event()
        watchdog = threading.Timer(self.timeout, lambda: (timed_out.set(), process.kill()))
        watchdog.start()
        try:
            write_message(cast(BinaryIO, process.stdin), header, tensors)
            answer, results = read_message(cast(BinaryIO, process.stdout))
        except (EOFError, OSError):
            code = process.wait()
            self._close()
            if timed_out.is_set():
                raise late(self.timeout, tail(self._log, log_start)) from None
            raise died(ending(code), tail(self._log, log_start)) from None
        finally:
            watchdog.cancel()
        if "error" in answer:
            raise EngineFailure(answer["error"])
        return answer, results

    def _alive(self) -> subprocess.Popen:
        """Return the process, a new one if it has left. Raises EngineDied if it crashed after its last answer."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._close()
            if code != 0:
                raise died(f"after its last answer it {ending(code)}", tail(self._log, self._log_start))
        if self._process is None:
            self._log_start = os.fstat(self._log.fileno()).st_size
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # Without this, ggml starts a debugger to print a backtrace.
                env={**environment(), "GGML_NO_BACKTRACE": "1"},
                start_new_session=True,
            )
            weakref.finalize(self, _stop, self._process)
        return self._process

    def _close(self) -> None:
        if self._process is not None:
            _stop(self._process)
            self._process = None


def serve(answer) -> None:
    """Answer requests from stdin until it closes.

    answer: (header, tensors) -> (header, tensors); an exception's text becomes the answer's "error".
    What the engine itself prints on stdout goes to stderr.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            header, tensors = read_message(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply, results = answer(header, tensors)
        except Exception as error:
            reply, results = {"error": f"{type(error).__name__}: {error}"}, {}
        write_message(replies, reply, results)


def _stop(process: subprocess.Popen) -> None:
    """Kill a worker and the other processes in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
