"""Make a command and its environment work in another working folder, without revealing the current one."""

import os
import shlex
import shutil
from pathlib import Path


def command(text: str) -> list[str]:
    """Split a command line and make its paths absolute. Raises ValueError for an unclosed quotation mark.

    The program is looked up on PATH, as a shell does. An argument, or FILE in "--option=FILE", is a path if a file
    of that name exists, or a folder of that name that is written with a slash or as "." or ".."; so is each part of
    a list such as ".:lib/engine.jar", of which one part is a path.
    """
    words = shlex.split(text)
    if not words:
        raise ValueError("no program is named")
    program = words[0] if os.sep in words[0] else shutil.which(words[0]) or words[0]
    return [os.path.abspath(program) if os.sep in program else program, *map(_argument, words[1:])]


def _argument(word: str) -> str:
    option, equals, value = word.rpartition("=") if not Path(word).exists() else ("", "", word)
    parts = value.split(os.pathsep)
    if not any(map(_is_path, parts)):
        return word
    # Beside a path, a bare name in a list is a folder, too.
    own = [os.path.abspath(part) if part and os.path.exists(part) else part for part in parts]
    return option + equals + os.pathsep.join(own)


def _is_path(word: str) -> bool:
    return os.path.isfile(word) or (os.path.isdir(word) and (os.sep in word or word in (".", "..")))


def environment() -> dict[str, str]:
    """Return refsd's environment for a program: without the working folder's name and the REFSD_* variables.

    In variables whose name ends in PATH, existing relative folders become absolute; other entries are kept.
    """
    hidden = ("PWD", "OLDPWD", "_")
    kept = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith("REFSD_")}
    return {k: _search_path(v) if k.endswith("PATH") else v for k, v in kept.items()}


def _search_path(value: str) -> str:
    folders = value.split(os.pathsep)
    return os.pathsep.join(os.path.abspath(f) if f and os.path.exists(f) else f for f in folders)
