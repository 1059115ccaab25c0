"""Parse a prompt's weights exactly as stable-diffusion.cpp does: nearly A1111's syntax (prompt.py)."""

import re

import numpy as np

from refsd.tokenizers.chunking import Parts

# sd.cpp re-runs the regex on the remaining text, so `BREAK\b` also matches inside a word.
_PIECE = re.compile(r"\\[()\[\]\\]|\\|\(|\[|:([+-]?[.\d]+)\)|\)|\]|BREAK\b|[^\\()\[\]:B]+|:|B", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")


def parse_attention_sdcpp(prompt: str) -> Parts:
    """Parse a prompt into parts and their weights; None is a BREAK.

    Differences from A1111: only a backslash before "(" is removed; a weight between colon and bracket has no
    blanks; blanks around a BREAK stay; a word that ends in BREAK is a BREAK; of 1.2.3 the leading number counts.
    "(x:.)" crashes stable-diffusion.cpp, and is plain text here.
    Weights are float32, bit for bit the same. Source: stable-diffusion.cpp src/util.cpp, parse_prompt_attention.
    """
    parts: list[list] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}
    usual = {"(": np.float32(1.1), "[": np.float32(1) / np.float32(1.1)}

    def weigh(start: int, weight: np.float32) -> None:
        for part in parts[start:]:
            part[1] = part[1] * weight

    for piece in _PIECE.finditer(prompt):
        text, number = piece[0], _NUMBER.match(piece[1] or "")
        if text in opened:
            opened[text].append(len(parts))
        elif piece[1] and number:
            if opened["("]:
                weigh(opened["("].pop(), np.float32(number[0]))
        elif text == ")" and opened["("]:
            weigh(opened["("].pop(), usual["("])
        elif text == "]" and opened["["]:
            weigh(opened["["].pop(), usual["["])
        else:
            parts.append([text.replace(r"\(", "("), np.float32(-1 if text == "BREAK" else 1)])
    for bracket, starts in opened.items():
        for start in starts:
            weigh(start, usual[bracket])
    joined: list[list] = []
    for text, weight in parts or [["", np.float32(1)]]:
        if joined and joined[-1][1] == weight:
            joined[-1][0] += text
        else:
            joined.append([text, weight])
    return [None if (text, weight) == ("BREAK", -1) else (text, float(weight)) for text, weight in joined]
