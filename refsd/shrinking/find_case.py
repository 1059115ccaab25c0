"""The case that a name or a path means."""

from pathlib import Path

from refsd import cases as corpus
from refsd.golden.case import Case
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.shrinking import folder


def find_case(text: str) -> Case:
    """A case of the corpus by its name, or that of a folder which `refsd shrink` wrote. Raises BadInput."""
    if text in corpus.CASES:
        return corpus.CASES[text]
    path = Path(text)
    if path.name == folder.CASE:
        path = path.parent
    if path.is_dir():
        return folder.read(path)
    meant = did_you_mean(text, corpus.CASES)
    raise BadInput(f"no case {text!r}{meant}, nor a folder of `refsd shrink`: `refsd golden list` shows the cases")
