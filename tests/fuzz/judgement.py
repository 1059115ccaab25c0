"""What refsd must do with a damaged input, and what it did.

refused:  one printable line, and exit code 2 of a command
answered: as a second reader of the format answers; and otherwise than before where the meaning was changed

Whatever else it does is a failure: another exception, a refusal that does not say where, a second reader that
refuses or reads something else (the damage was silently accepted), a process that dies, hangs or wants memory.
"""

import contextlib
import io
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from kind import Kind, Mutation

from refsd.cli import main
from refsd.golden.engine import EngineFailure
from refsd.numerics.errors import BadInput

REFUSALS = (BadInput, EngineFailure)
LONGEST = 20_000  # characters of a refusal: it may list what is wrong


class Outcome(NamedTuple):
    """kind: "refused", "same" or "another" answer than before, or "failure" """

    kind: str
    what: str = ""


def judge(kind: Kind, folder: Path, mutation: Mutation, before: Any, commands: bool) -> Outcome:
    """
    before:   refsd's answer to the example without the mutation
    commands: whether the kind's commands are run as well
    """
    try:
        answer = kind.read(folder)
    except REFUSALS as refusal:
        outcome = _refusal(str(refusal))
    except Exception:  # a traceback is what the fuzzer looks for: a failure
        return Outcome("failure", "traceback: " + _traceback())
    else:
        outcome = _answer(kind, folder, mutation, answer, before)
    if outcome.kind != "failure" and commands:
        for arguments in kind.commands(folder):
            fault = command_fault(arguments)
            if fault:
                return Outcome("failure", f"refsd {' '.join(arguments)}: {fault}")
    return outcome


def _traceback() -> str:
    """Where it was raised, and what."""
    error = sys.exception()
    at = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]  # type: ignore[union-attr]
    return f"{' > '.join(at)}: {type(error).__name__}: {str(error)[:200]!a}"


def _refusal(text: str) -> Outcome:
    if not text.isprintable() or not 0 < len(text) < LONGEST:
        return Outcome(
            "failure", f"a refusal of {len(text)} characters that is not one printable line: {text[:300]!a}"
        )
    return Outcome("refused", text)


def _answer(kind: Kind, folder: Path, mutation: Mutation, answer: Any, before: Any) -> Outcome:
    if kind.second is not None:
        try:
            other = kind.second(folder)
        except Exception as error:
            return Outcome(
                "failure", f"silently accepted: a second reader refuses it: {type(error).__name__}: {error}"
            )
        if other != answer:
            return Outcome("failure", f"silently accepted: a second reader finds {_difference(answer, other)}")
    if mutation.changes and answer == before:
        return Outcome("failure", "silently accepted: the answer is the same as without the change")
    return Outcome("same" if answer == before else "another")


def _difference(ours: Any, other: Any) -> str:
    if isinstance(ours, dict) and isinstance(other, dict):
        keys = [key for key in (*ours, *other) if ours.get(key, "nothing") != other.get(key, "nothing")]
        if keys:
            return f"{keys[0]!a}: {_difference(ours.get(keys[0]), other.get(keys[0]))}"
    return f"{ascii(other)[:300]}, refsd {ascii(ours)[:300]}"


def command_fault(arguments: list[str]) -> str | None:
    """Run a command in this process. -> what is wrong with how it ended or what it said"""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: Any = 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", ["refsd", *arguments]),
        ):
            main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        return "traceback: " + _traceback()
    said = [stream.buffer.getvalue().decode(errors="replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return ending_fault(code, *said)


def ending_fault(code: Any, out: str, err: str) -> str | None:
    """What is wrong with how a command ended: its exit code, or what it printed."""
    if code not in (0, 1, 2):
        return f"exit code {code}: {err[-300:]!a}"
    if "Traceback" in err or "Traceback" in out:
        return f"a traceback: {err[-600:]!a}"
    unprintable = re.search(r"[^\n\t]", "".join(c for c in out + err if not c.isprintable() and c not in "\n\t"))
    if unprintable:
        return f"it prints {unprintable[0]!a}"
    said = "".join(line for line in err.splitlines(keepends=True) if not line.startswith("refsd: warning: "))
    if code == 2 and not said.startswith(("refsd: ", "Usage:")):
        return f"exit code 2, and stderr says {said[:200]!a}"
    if code == 2 and said.startswith("refsd: ") and said.count("\n") != 1:
        return f"a refusal of {said.count(os.linesep)} lines: {said[:300]!a}"
    return None
