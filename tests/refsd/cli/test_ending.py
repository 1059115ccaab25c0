"""How a command ends: one line and an exit code, whatever went wrong outside of it."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from refsd.cli import ending
from refsd.numerics.errors import BadInput


def raises(error):
    def app():
        raise error

    return app


TERABYTES = MemoryError("Unable to allocate 1.00 TiB for an array")
ENDS = {
    "bad input": (BadInput("a.gguf: cut short"), 2, "refsd: a.gguf: cut short\n"),
    "an error of the system": (OSError(30, "Read-only file system", "/store/x"), 2, "/store/x: Read-only file sys"),
    "two names": (OSError(18, "Cross-device link", "a", None, "b"), 2, "refsd: a: b: Cross-device link\n"),
    "an error without a file": (OSError(5, "Input/output error"), 2, "refsd: Input/output error\n"),
    "an error of NumPy's": (OSError("2000 requested and 1000 written"), 2, "2000 requested and 1000 written\n"),
    "memory": (MemoryError(), 2, "refsd: not enough memory\n"),
    "an array": (TERABYTES, 2, "refsd: not enough memory: Unable to allocate 1.00 TiB for an array\n"),
    "an interruption": (KeyboardInterrupt(), 130, "refsd: interrupted\n"),
    "an interruption that Typer met": (SystemExit(130), 130, "refsd: interrupted\n"),
    "lines": (BadInput("a\nb"), 2, "refsd: a\\nb\n"),
    "an escape in a file's name": (OSError(2, "No such file", "a\x1b[2J"), 2, "refsd: a\\x1b[2J: No such file\n"),
}


@pytest.mark.parametrize("case", ENDS)
def test_one_line_and_a_code(capsys, case):
    error, code, said = ENDS[case]
    assert ending.run(raises(error)) == code
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


@pytest.mark.parametrize(("given", "code"), [(0, 0), (None, 0), (1, 1), (2, 2), ("a message", 1)])
def test_typers_codes_pass(capsys, given, code):
    assert ending.run(raises(SystemExit(given))) == code
    assert capsys.readouterr() == ("", "")


def test_a_library_s_warning_is_one_line(capsys):
    """Python shows two, with the place in the source that raised it."""

    def app():
        with warnings.catch_warnings(action="default"):
            warnings.warn("skipping tag 257\x1b[2J\nof a picture\n", stacklevel=1)

    shown = warnings.showwarning
    assert ending.run(app) == 0
    assert capsys.readouterr() == ("", "refsd: warning: skipping tag 257\\x1b[2J\\nof a picture\n")
    assert warnings.showwarning is shown


def test_a_mistake_of_refsds_own_is_no_bad_input():
    with pytest.raises(ZeroDivisionError):
        ending.run(raises(ZeroDivisionError()))


def test_numpys_own_memory_error(capsys):
    assert ending.run(lambda: np.zeros(1 << 46)) == 2
    assert "not enough memory: Unable to allocate 512. TiB" in capsys.readouterr().err


# A command that writes 200,000 bytes, through Python and through Rich.
MUCH = """
import sys
from rich.console import Console
from refsd.cli.ending import run
def app():
    if sys.argv[1] == "rich":
        Console().print("x" * 60 + "\\n", soft_wrap=True, end="x" * 200_000)
    else:
        print("x" * 200_000, file=sys.stderr if sys.argv[1] == "stderr" else sys.stdout)
sys.exit(run(app))
"""


def much(way, **streams):
    command = [sys.executable, "-P", "-c", MUCH, way]
    return subprocess.run(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}, text=True)


@pytest.mark.parametrize("way", ["print", "rich"])
def test_a_full_disk_behind_standard_output(way):
    with open("/dev/full", "w") as full:
        done = much(way, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "refsd: standard output cannot be written: No space left on device\n"


def test_a_full_disk_behind_standard_error():
    with open("/dev/full", "w") as full:
        done = much("stderr", stderr=full)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("way", ["print", "rich"])
def test_a_reader_that_has_enough(way):
    """`refsd golden list | head -1`: quiet, and no code that means a verdict."""
    read, write = os.pipe()
    os.close(read)
    done = much(way, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
