"""Make untrusted text safe to print, such as an engine's output or a file's tensor names."""

import re

LONGEST = 2000


def printable(text: str, longest: int = LONGEST) -> str:
    r"""Return a single line without control characters, for a terminal, XML or JSON.

    Characters that Unicode does not class as printable are escaped: "\x1b", "\n", "\u202e". These are
    the C0 and C1 controls, line separators, marks that change the direction of text, and lone surrogates. Text
    beyond `longest` characters is cut.
    """
    if len(text) <= longest and text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: longest + 1])
    if len(shown) <= longest:
        return shown
    rest = f"... ({len(text)} characters)"
    return shown[: longest - len(rest)] + rest


def in_markdown(text: str) -> str:
    """Escape `printable` text for a line or a table cell of Markdown: no HTML, link, picture or cell separator."""
    return re.sub(r"([\\|<&\[])", r"\\\1", printable(text))
