"""Say what in a command may be wrong where a program does not describe itself: it runs in another, empty folder."""

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Sequence

# Programs that look for their project in the working folder -> the option that names it.
_PROJECTS = {
    "npm": "--prefix FOLDER",
    "pnpm": "-C FOLDER",
    "yarn": "--cwd FOLDER",
    "cargo": "--manifest-path FILE",
    "dotnet": "--project FOLDER",
    "make": "-C FOLDER",
    "uv": "--project FOLDER",
}
_EXTENSION = re.compile(r"\.[A-Za-z]\w*$")
_EMPTY = "a program starts in an empty folder of its own"


def start_hint(text: str, error: str) -> str:
    """Return " (there is no file nope.js ...)"; "" if nothing in the command looks wrong.

    text:  the command as the user writes it
    error: what the program said, or how it ended
    """
    try:
        words = shlex.split(text)
    except ValueError:  # an open quotation mark, which the error tells
        return ""
    hint = _hint(words, text, error) if words else ""
    return hint and f" ({hint})"


def _hint(words: Sequence[str], text: str, error: str) -> str:
    program = words[0]
    if os.sep not in program and not shutil.which(program) and os.path.isfile(program):
        return f'did you mean "exec:./{text}"?'
    if "ended with exit code" not in error:
        return ""
    for before, word in itertools.pairwise(words):
        looks_like_file = not word.startswith("-") and (os.sep in word or _EXTENSION.search(word))
        if looks_like_file and word in error and not os.path.exists(word):
            if before == "-m":
                return f"{_EMPTY}: to find {word} from here write env PYTHONPATH=. before it"
            return (
                f"there is no file {word} in the folder where refsd was started, so the word was passed on as it is"
            )
    if option := _PROJECTS.get(os.path.basename(program)):
        return f"{_EMPTY}: name the project's path, {os.path.basename(program)} {option}"
    if error.endswith("it said nothing"):
        return f"{_EMPTY}: one that looks for files of its project needs their path"
    return ""
