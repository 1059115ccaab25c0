"""Text from outside, made safe to show: what an engine said, what a file calls its tensors."""

import re

LONGEST = 2000


def printable(text: str, longest: int = LONGEST) -> str:
    r"""One line without control characters, for a terminal, XML or JSON.

    Whatever Unicode calls no printable character is written as an escape: "\x1b", "\n", "\u202e". That takes in
    the C0 and C1 controls, line separators, marks that turn the direction of text, and lone surrogates. Text
    beyond `longest` characters is cut.
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: longest + 1])
    if len(shown) <= longest:
        return shown
    rest = f"... ({len(text)} characters)"
    return shown[: longest - len(rest)] + rest


def in_markdown(text: str, longest: int = LONGEST) -> str:
    """`printable` text for a line or a cell of Markdown: no HTML, no link, no picture, no end of the cell."""
    return re.sub(r"([\\|<&\[])", r"\\\1", printable(text, longest))
