"""Send all requests to one process of a program: requests as lines on stdin, answers as lines on stdout.

Requests are the lines of `Program.ask`. The answer to a request is the line {"done": the request's "case"}, which
the program prints once the output file is complete. Everything else the program prints is its log.
"""

import contextlib
import json
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec

from refsd.engines.exec.program import Program, full_request
from refsd.engines.relocation import environment
from refsd.engines.supervised import Supervised, ending, last_words
from refsd.engines.work_folder import WorkFolder
from refsd.golden.engine import EngineDied, EngineFailure
from refsd.numerics.printable import printable

_ANSWER = re.compile(rb'\{\s*"done"\s*:')
_LONGEST_LINE = 1 << 16
_PAUSES = 0.0005, 0.05  # seconds between two readings of the log: the first and the longest pause


class _Answer(msgspec.Struct):
    """The program's answer line. done: "case" of the request; error: why there is no output file"""

    done: str
    error: str = ""


class ServedProgram:
    """A program that serves all requests in one process.

    The process starts at the first request. It is ended after a failure, which fails only the current request, and
    started again at the next request.

    program: the command, and the limits that apply to each request
    """

    def __init__(self, program: Program):
        self._program = program
        self._supervised = Supervised()
        self._turn = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: Mapping[str, Any], folder: WorkFolder, output: str, most: int | None = None) -> bytes:
        """Do what Program.ask does; the answer is recognised by request["case"]."""
        most = self._program.max_output if most is None else most
        with self._turn:
            try:
                process = self._alive()
                process.expect_silence()
                answer = self._answer(process, full_request(request, folder, output), folder)
            except EngineFailure:
                self._end()
                raise
            if answer.error:
                raise EngineFailure(answer.error[:300])
            try:
                return folder.read(output, most)
            except EngineFailure as error:
                raise EngineFailure(f"it answered, but {error}") from None

    def _answer(self, process: "_Process", request: Mapping[str, Any], folder: WorkFolder) -> _Answer:
        left = json.dumps(request).encode() + b"\n"
        before = folder.size() + process.folder.size()
        deadline = time.monotonic() + self._program.timeout
        pause, longest = _PAUSES
        while True:
            left = process.send(left)
            code = self._supervised.poll(pause)
            answer = process.answer(request["case"])
            if folder.size() + process.folder.size() - before + process.printed() > self._program.max_output:
                raise EngineFailure(f"it wrote more than {self._program.max_output >> 20} MiB")
            if answer is not None:
                return answer
            if code is not None:
                raise EngineDied(f"{ending(code)}: {process.last_words()}")
            if time.monotonic() > deadline:
                raise EngineDied(f"no answer after {self._program.timeout:g} s")
            pause = min(1.5 * pause, longest)

    def _alive(self) -> "_Process":
        if self._process is not None and self._supervised.poll() is not None:
            self._end()  # the process ended by itself between two requests
        if self._process is None:
            self._process = _Process()
            self._process.start(self._supervised, self._program)
        return self._process

    def _end(self) -> None:
        self._supervised.end()
        if self._process is not None:
            self._process.close()
            self._process = None


class _Process:
    """The working folder, the stdin and the log of one process."""

    def __init__(self):
        self.folder = WorkFolder("refsd-exec-")
        self._log: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._theirs, self._stdin = os.pipe()
        os.set_blocking(self._stdin, False)
        self._read, self._line, self._last = 0, b"", ""
        self.close = weakref.finalize(self, _close, self.folder, self._log, self._stdin)

    def start(self, supervised: Supervised, program: Program) -> None:
        with open(self._theirs, "rb") as stdin:
            supervised.start(program.command, self.folder.work, environment(), program.max_file, self._log, stdin)

    def send(self, data: bytes) -> bytes:
        """Write as much as the pipe accepts and return the rest; b"" if the program has closed its stdin."""
        try:
            return data[os.write(self._stdin, data) :] if data else data
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return b""

    def expect_silence(self) -> None:
        """Empty the log before a request. Raises EngineFailure if it holds an answer that was not asked for."""
        for answer in self._answers():
            if answer.done == self._last:
                raise EngineFailure("it had answered the request before this one twice")
            raise _unasked(answer)
        self._read, self._line = 0, b""
        os.ftruncate(self._log.fileno(), 0)
        os.lseek(self._log.fileno(), 0, os.SEEK_SET)  # the program shares this file offset

    def answer(self, word: str) -> _Answer | None:
        """Return the answer to the request whose "case" is `word`; None if the log has none yet.

        Raises EngineFailure for two answers, and for an answer to another request.
        """
        answers = list(self._answers())
        for answer in answers:
            if answer.done != word:
                raise _unasked(answer)
        if len(answers) > 1:
            raise EngineFailure("it answered twice")
        self._last = word if answers else self._last
        return answers[0] if answers else None

    def printed(self) -> int:
        """Return how many bytes the program has printed since the request began."""
        return os.fstat(self._log.fileno()).st_size

    def last_words(self) -> str:
        return last_words(self._log)

    def _answers(self):
        while data := os.pread(self._log.fileno(), 1 << 20, self._read):
            self._read += len(data)
            *lines, self._line = (self._line + data).split(b"\n")
            self._line = self._line[-_LONGEST_LINE:]
            for line in lines:
                begins = _ANSWER.search(line)
                if begins:
                    yield _parsed(line[begins.start() :])


def _unasked(answer: _Answer) -> EngineFailure:
    return EngineFailure(f"it answered to {printable(answer.done, 40)!r}, which nobody asked")


def _parsed(line: bytes) -> _Answer:
    try:
        return msgspec.json.decode(line, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailure(f"its answer is not understood: {error}") from None


def _close(folder: WorkFolder, log: BinaryIO, stdin: int) -> None:
    with contextlib.suppress(OSError):
        os.close(stdin)
    log.close()
    folder.__exit__()
