"""Send all requests to one process of a program: requests as lines on stdin, answers as lines on stdout.

Requests are the lines of `Program.ask`. The answer to a request is the line {"done": the request's "case"}, which
the program prints once the output file is complete. Everything else the program prints is its log.
"""

import contextlib
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import safetensors

from refsd.engines.exec.program import Program, full_request
from refsd.engines.relocation import environment
from refsd.engines.supervised import TAIL, Supervised, died, ending, last_lines, late
from refsd.engines.work_folder import WorkFolder
from refsd.golden.engine import EngineFailure

_ANSWER = re.compile(rb'\{\s*"done"\s*:')
_LONGEST_START = 1 << 10  # bytes of {"done":, with blanks
_PIPE = 1 << 20  # bytes that the program may be ahead of refsd
_PAUSES = 0.0005, 0.05  # seconds between two readings: the first and the longest pause
_PATIENCE = 9.0  # seconds before the output of a request without an answer is looked at, and between two looks


class _Answer(msgspec.Struct):
    """The program's answer line. done: "case" of the request; error: why there is no output file"""

    done: str
    error: str = ""


class ServedProgram:
    """A program that serves all requests in one process.

    The process starts at the first request. It is ended after a failure, which fails only the current request, and
    started again at the next request.

    program: the command, and the limits that apply to each request
    hint:    what the current request lacks, if it has waited long beside a complete output; else ""
    """

    def __init__(self, program: Program):
        self._program = program
        self._supervised = Supervised()
        self._turn = threading.Lock()
        self._process: _Process | None = None
        self.hint = ""

    def ask(self, request: Mapping[str, Any], folder: WorkFolder, output: str, most: int | None = None) -> bytes:
        """Do what Program.ask does; the answer is recognised by request["case"]."""
        most = self._program.max_output if most is None else most
        with self._turn:
            try:
                process = self._alive()
                process.expect_silence()
                process.begin()
                answer = self._answer(process, full_request(request, folder, output), folder, output)
            except EngineFailure:
                self._end()
                raise
            finally:
                self.hint = ""
            if answer.error:
                raise EngineFailure(answer.error[:300])
            try:
                return folder.read(output, most)
            except EngineFailure as error:
                raise EngineFailure(f"it answered, but {error}") from None

    def _answer(self, process: "_Process", request: Mapping[str, Any], folder: WorkFolder, output: str) -> _Answer:
        left = json.dumps(request).encode() + b"\n"
        before = folder.size() + process.folder.size()
        begun = time.monotonic()
        deadline, look = begun + self._program.timeout, begun + _PATIENCE
        pause, longest = _PAUSES
        while True:
            left = process.send(left)
            code = self._supervised.poll(pause)
            printed = process.printed
            answer = process.answer(request["case"])
            if folder.size() + process.folder.size() - before + process.printed > self._program.max_output:
                raise EngineFailure(f"it wrote more than {self._program.max_output >> 20} MiB")
            if answer is not None:
                return answer
            if code == 0:
                raise died(
                    f"{ending(0)}, though a program that declares serve answers until refsd closes its stdin",
                    process.tail,
                )
            if code is not None:
                raise died(ending(code), process.tail)
            if (now := time.monotonic()) > min(deadline, look):
                self.hint, look = self._missing_line(process, request["case"], folder, output), now + _PATIENCE
            if now > deadline:
                raise late(self._program.timeout, process.tail, self.hint)
            pause = _PAUSES[0] if process.printed > printed else min(1.5 * pause, longest)

    def _missing_line(self, process: "_Process", word: str, folder: WorkFolder, output: str) -> str:
        """Say that a complete output is there, but no answer line, and what the program printed last; else ""."""
        try:
            safetensors.deserialize(folder.read(output, self._program.max_output))
        except (EngineFailure, safetensors.SafetensorError):
            return ""
        # CASE for the random word: failures with the same reason are reported together.
        lines = [line.replace(word, "CASE") for line in last_lines(process.tail)]
        last = f'it printed "{lines[-1][:100]}"' if lines else "it printed nothing"
        end = " without the end of the line" if process.has_open_answer else ""
        return f'it wrote {output}, but no line {{"done": CASE}} came, with the request\'s "case"; {last}{end}'

    def _alive(self) -> "_Process":
        """Return the process, a new one if it has left. Raises EngineDied if it crashed after its last answer."""
        if self._process is not None and (code := self._supervised.poll()) is not None:
            self._process.expect_silence()
            if code != 0:
                raise died(f"after its last answer it {ending(code)}", self._process.tail)
            self._end()
        if self._process is None:
            self._process = _Process(self._program.max_output)
            self._process.start(self._supervised, self._program)
        return self._process

    def _end(self) -> None:
        self._supervised.end()
        if self._process is not None:
            self._process.close()
            self._process = None


class _Process:
    """The working folder, the stdin and the printed lines of one process. most: bytes that a request may print

    The program prints into a pipe, so that nothing of it goes to the disk; one that prints faster than refsd reads
    waits.
    """

    def __init__(self, most: int):
        self.folder = WorkFolder("refsd-exec-")
        self._most = most
        self._printed, self._theirs_out = os.pipe()
        self._theirs_in, self._stdin = os.pipe()
        for end in (self._printed, self._stdin):
            os.set_blocking(end, False)
        import fcntl  # not on Windows, where no program is served

        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # more than a user may have
                fcntl.fcntl(self._printed, fcntl.F_SETPIPE_SZ, _PIPE)
        self.printed = 0  # bytes since the request began
        self._line, self.tail, self._last = bytearray(), b"", ""
        self.close = weakref.finalize(self, _close, self.folder, self._printed, self._stdin)

    def start(self, supervised: Supervised, program: Program) -> None:
        with open(self._theirs_in, "rb") as stdin, open(self._theirs_out, "wb") as output:
            supervised.start(program.command, self.folder.work, environment(), program.max_file, output, stdin)

    def send(self, data: bytes) -> bytes:
        """Write as much as the pipe accepts and return the rest; b"" if the program has closed its stdin."""
        try:
            return data[os.write(self._stdin, data) :] if data else data
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return b""

    @property
    def has_open_answer(self) -> bool:
        """Return True if an answer has begun whose line has not ended."""
        return _ANSWER.match(self._line) is not None

    def expect_silence(self) -> None:
        """Read what was printed since the last answer. Raises EngineFailure if an answer is in it."""
        for answer in self._answers():
            if answer.done == self._last:
                raise EngineFailure("it had answered the request before this one twice")
            raise _unasked(answer)

    def begin(self) -> None:
        """Count what is printed from now on."""
        self.printed, self.tail = 0, b""

    def answer(self, word: str) -> _Answer | None:
        """Return the answer to the request whose "case" is `word`; None if there is none yet.

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

    def _answers(self) -> Iterator[_Answer]:
        """Read what is printed until it pauses or is more than a request may print. -> the answers in it"""
        while self.printed <= self._most and (data := self._more()):
            self.printed += len(data)
            self.tail = (self.tail + data)[-TAIL:]
            *ends, rest = data.split(b"\n")
            for end in ends:
                self._continue(end)
                if _ANSWER.match(self._line):
                    yield _parsed(bytes(self._line))
                self._line.clear()
            self._continue(rest)

    def _continue(self, data: bytes) -> None:
        """Add to the line that is being read: all of an answer, but of another line only where one may begin."""
        if _ANSWER.match(self._line):
            self._line += data
            return
        self._line += data
        begins = _ANSWER.search(self._line)
        del self._line[: begins.start() if begins else -_LONGEST_START]

    def _more(self) -> bytes:
        try:
            return os.read(self._printed, _PIPE)
        except BlockingIOError:
            return b""


def _unasked(answer: _Answer) -> EngineFailure:
    return EngineFailure('the word of its line {"done": WORD} is not the "case" of the request')


def _parsed(line: bytes) -> _Answer:
    try:
        return msgspec.json.decode(line, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailure(f"its answer is not understood: {error}") from None


def _close(folder: WorkFolder, printed: int, stdin: int) -> None:
    for end in (printed, stdin):
        with contextlib.suppress(OSError):
            os.close(end)
    folder.__exit__()
