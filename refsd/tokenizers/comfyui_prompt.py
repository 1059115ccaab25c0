"""ComfyUI's prompt weights: only round brackets count, and a number replaces the weight of outer brackets."""

import contextlib

from refsd.tokenizers.prompt import Part


def parse_weights(prompt: str, weight: float = 1.0) -> list[Part]:
    r"""Parse a prompt into parts and their weights.

    "a (red) ((cat:1.3) dog)" -> [("a ", 1), ("red", 1.1), (" ", 1), ("cat", 1.3), (" dog", 1.1)]
    (x) has 1.1 times the weight around it, (x:1.3) has weight 1.3 whatever is around it; \( and \) are literal
    brackets; [x], BREAK and other backslashes are plain text, and so is an unclosed bracket.
    Source: ComfyUI comfy/sd1_clip.py, token_weights.
    """
    escaped = prompt.replace("\\)", "\0\1").replace("\\(", "\0\2")
    return [(text.replace("\0\1", ")").replace("\0\2", "("), w) for text, w in _weighed(escaped, weight)]


def _weighed(text: str, weight: float) -> list[Part]:
    parts: list[Part] = []
    for piece in _pieces(text):
        if len(piece) < 2 or piece[0] != "(" or piece[-1] != ")":
            parts.append((piece, weight))
            continue
        inner, new = piece[1:-1], weight * 1.1
        at = inner.rfind(":")
        if at > 0:
            with contextlib.suppress(ValueError):
                inner, new = inner[:at], float(inner[at + 1 :])
        parts += _weighed(inner, new)
    return parts


def _pieces(text: str) -> list[str]:
    """Split a text into outermost bracketed groups and the text between them."""
    pieces, now, depth = [], "", 0
    for sign in text:
        if sign == "(" and depth == 0:
            pieces, now = [*pieces, now], ""
        now += sign
        depth += (sign == "(") - (sign == ")")
        if sign == ")" and depth == 0:
            pieces, now = [*pieces, now], ""
    return [piece for piece in [*pieces, now] if piece]
