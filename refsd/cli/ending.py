"""Run a command and turn its end into an exit code, with one line on stderr for errors that the user can fix."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable

from refsd.numerics import mapped_files
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable

BAD_INPUT = 2
INTERRUPTED = 130  # as in a shell: 128 + the signal's number
PIPE_CLOSED = 141


class _Closed(Exception):
    """The reader of this command's output has closed the pipe."""


class _Stream(io.FileIO):
    """Standard output or error, whose write errors become BadInput.

    A closed pipe raises _Closed, because Typer and Rich both catch BrokenPipeError and exit with 1.
    """

    def __init__(self, handle: int, called: str):
        super().__init__(handle, "w", closefd=False)
        self._called = called

    def write(self, data) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise _Closed from None
        except OSError as error:
            raise BadInput(f"{self._called} cannot be written: {error.strerror}") from None


def run(app: Callable[[], object]) -> int:
    """Run the command line. -> its exit code: 0 pass, 1 does not conform, 2 bad usage or bad input"""
    _guard_streams()
    mapped_files.arm()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code = _exit_code(app)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        return code
    except _Closed:
        code, line = PIPE_CLOSED, ""
    except KeyboardInterrupt:
        code, line = INTERRUPTED, "interrupted"
    except BadInput as error:
        code, line = BAD_INPUT, str(error)
    except MemoryError as error:
        code, line = BAD_INPUT, f"not enough memory{f': {error}' if str(error) else ''}"
    except OSError as error:
        named = [str(name) for name in (error.filename, error.filename2) if name is not None]
        code, line = BAD_INPUT, ": ".join([*named, error.strerror or str(error) or type(error).__name__])
    _say(f"refsd: {printable(line)}\n" if line else "")
    return code


def _warn(message: Warning | str, *_: object) -> None:
    """Print a warning of refsd or a library in one line, without the source line that raised it."""
    if sys.stderr is not None:
        sys.stderr.write(f"refsd: warning: {printable(str(message).strip())}\n")


def _exit_code(app: Callable[[], object]) -> int:
    """Run the app and return its exit code; Typer always ends with SystemExit, even on success."""
    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _guard_streams() -> None:
    for name, handle, called in (("stdout", 1, "standard output"), ("stderr", 2, "standard error")):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            raw = io.BufferedWriter(_Stream(handle, called))
            guarded = io.TextIOWrapper(
                raw, stream.encoding, stream.errors, line_buffering=stream.line_buffering or name == "stderr"
            )
            setattr(sys, name, guarded)


def _say(line: str) -> None:
    """Print the last line and flush; send unwritable output to os.devnull, so that exiting cannot fail."""
    for stream, handle in ((sys.stderr, 2), (sys.stdout, 1)):
        try:
            if stream is not None:
                stream.write(line if handle == 2 else "")
                stream.flush()
        except (_Closed, BadInput, OSError, ValueError):
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, handle)
                os.close(nowhere)
