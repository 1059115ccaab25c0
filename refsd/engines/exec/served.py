"""A program that answers one request after the other in one process: lines on stdin, lines on stdout.

Requests are the lines of `Program.ask`; an answer is a line {"done": the request's word}, behind which the output
file is whole. What else the program prints is its log.
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
from refsd.golden.engine import EngineFailure
from refsd.numerics.printable import printable

_ANSWER = re.compile(rb'\{\s*"done"\s*:')
_LONGEST_LINE = 1 << 16
_PAUSES = 0.0005, 0.05  # seconds between two looks at the log, the first and the longest


class _Answer(msgspec.Struct):
    """done: the word of the request; error: why it has no output"""

    done: str
    error: str = ""


class ServedProgram:
    """The process starts at the first request, and again after each failure, for which only that request answers.

    program: its command and its limits, which hold for each request
    """

    def __init__(self, program: Program):
        self._program = program
        self._supervised = Supervised()
        self._turn = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: Mapping[str, Any], folder: WorkFolder, output: str, most: int | None = None) -> bytes:
        """As Program.ask; `request` has its word as "case"."""
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
                raise EngineFailure(f"{ending(code)}: {process.last_words()}")
            if time.monotonic() > deadline:
                raise EngineFailure(f"no answer after {self._program.timeout:g} s")
            pause = min(1.5 * pause, longest)

    def _alive(self) -> "_Process":
        if self._process is not None and self._supervised.poll() is not None:
            self._end()  # it ended by itself between two requests
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
    """What belongs to one process: its working folder, its stdin, its log."""

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
        """Write what the pipe takes -> what is left. A program that has closed its stdin is given nothing."""
        try:
            return data[os.write(self._stdin, data) :] if data else data
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return b""

    def expect_silence(self) -> None:
        """Raise EngineFailure if an answer came that was not asked for; begin the log anew."""
        for answer in self._answers():
            if answer.done == self._last:
                raise EngineFailure("it had answered the request before this one twice")
            raise _unasked(answer)
        self._read, self._line = 0, b""
        os.ftruncate(self._log.fileno(), 0)
        os.lseek(self._log.fileno(), 0, os.SEEK_SET)  # the program writes through the same open file

    def answer(self, word: str) -> _Answer | None:
        """The answer to this word, if it has come. Raises EngineFailure for two, and for one to another word."""
        answers = list(self._answers())
        for answer in answers:
            if answer.done != word:
                raise _unasked(answer)
        if len(answers) > 1:
            raise EngineFailure("it answered twice")
        self._last = word if answers else self._last
        return answers[0] if answers else None

    def printed(self) -> int:
        """Bytes in the log since the request began."""
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
