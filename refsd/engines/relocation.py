"""A command and its environment, made to work in another working folder and to say nothing about this one."""

import os
import shlex
import shutil
from pathlib import Path


def command(text: str) -> list[str]:
    """Split a command line, and make its program and its files absolute. Raises ValueError for an open quotation.

    The program is looked for as a shell does. An argument, or what follows the "=" of "--option=FILE", is made
    absolute where it names a file, or a folder written with a slash or as "." or "..".
    """
    words = shlex.split(text)
    if not words:
        raise ValueError("no program is named")
    program = words[0] if os.sep in words[0] else shutil.which(words[0]) or words[0]
    return [os.path.abspath(program) if os.sep in program else program, *map(_argument, words[1:])]


def _argument(word: str) -> str:
    option, equals, value = word.rpartition("=") if not Path(word).exists() else ("", "", word)
    is_path = os.path.isfile(value) or (os.path.isdir(value) and (os.sep in value or value in (".", "..")))
    return option + equals + os.path.abspath(value) if is_path else word


def environment() -> dict[str, str]:
    """refsd's own environment, as a program gets it: without the working folder's name and refsd's settings.

    In variables named ...PATH relative folders are made absolute; those that are not there are left as they are.
    """
    hidden = ("PWD", "OLDPWD", "_")
    kept = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith("REFSD_")}
    return {k: _search_path(v) if k.endswith("PATH") else v for k, v in kept.items()}


def _search_path(value: str) -> str:
    folders = value.split(os.pathsep)
    return os.pathsep.join(os.path.abspath(f) if f and os.path.exists(f) else f for f in folders)
