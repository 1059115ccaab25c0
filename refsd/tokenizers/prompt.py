"""Parse a prompt's weights, and cut it into chunks of 75 tokens.

The syntax is A1111's (modules/prompt_parser.py): (x) has weight 1.1, (x:1.3) 1.3, [x] 1/1.1; brackets nest, and
their weights multiply. A backslash before a bracket makes it plain text and is removed. BREAK ends a chunk, except
within brackets, where it is a word of weight -1.1. The chunks are stable-diffusion.cpp's (src/conditioner.hpp): 75
tokens each, cut at any token (A1111 goes back to a comma).

stable-diffusion.cpp's syntax differs in a few points: refsd/tokenizers/sdcpp_prompt.py.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refsd.tokenizers.clip_bpe import BOS, EOS
from refsd.tokenizers.vocabulary import Tokenizer

LENGTH = 77
ROOM = LENGTH - 2

_PIECE = re.compile(r"\\[()\[\]\\]|\\|\(|\[|:\s*([+-]?[.\d]+)\s*\)|\)|\]|[^\\()\[\]:]+|:")
_BREAK = re.compile(r"\s*\bBREAK\b\s*")

Part = tuple[str, float]


class Chunk(NamedTuple):
    """A chunk of a prompt.

    ids:     [77] int64: BOS, up to 75 tokens, then EOS up to the end
    weights: [77] float32, 1 by default
    """

    ids: np.ndarray
    weights: np.ndarray


def parse_attention(prompt: str) -> list[Part | None]:
    """Parse a prompt into parts and their weights; None is a BREAK.

    "a (red:1.3) [[cat]]" -> [("a ", 1), ("red", 1.3), (" ", 1), ("cat", 1/1.21)]
    Weights are multiplied in float32, in the order in which brackets close; an unclosed one closes at the end.
    """
    parts: list[list] = []
    round_brackets: list[int] = []
    square_brackets: list[int] = []
    more, less = np.float32(1.1), np.float32(1) / np.float32(1.1)

    def weigh(start: int, weight: np.float32) -> None:
        for part in parts[start:]:
            part[1] = part[1] * weight

    for piece in _PIECE.finditer(prompt):
        text, number = piece[0], _number(piece[1])
        if text == "(":
            round_brackets.append(len(parts))
        elif text == "[":
            square_brackets.append(len(parts))
        elif number is not None and round_brackets:
            weigh(round_brackets.pop(), number)
        elif text == ")" and round_brackets:
            weigh(round_brackets.pop(), more)
        elif text == "]" and square_brackets:
            weigh(square_brackets.pop(), less)
        elif text[0] == "\\":
            parts.append([text[1:], np.float32(1)])
        else:
            for i, words in enumerate(_BREAK.split(text)):
                parts += [["BREAK", np.float32(-1)]] if i else []
                parts.append([words, np.float32(1)])
    for start in round_brackets:
        weigh(start, more)
    for start in square_brackets:
        weigh(start, less)
    return _joined(parts)


def chunks(tokenizer: Tokenizer, prompt: str) -> list[Chunk]:
    """Return the prompt's chunks for the text encoder, at least one; an empty prompt is BOS and EOS."""
    return cut(tokenizer, parse_attention(prompt))


def cut(tokenizer: Tokenizer, parts: Sequence[Part | None]) -> list[Chunk]:
    """Cut after every 75 tokens; a BREAK fills the chunk with EOS."""
    ids: list[int] = []
    weights: list[float] = []
    for part in parts:
        if part is None:
            new = [EOS] * (-len(ids) % ROOM)
            weight = 1.0
        else:
            new, weight = tokenizer.encode(part[0]), part[1]
        ids += new
        weights += [weight] * len(new)
    starts = range(0, max(len(ids), 1), ROOM)
    return [chunk(ids[start : start + ROOM], weights[start : start + ROOM]) for start in starts]


def chunk(ids: list[int], weights: list[float]) -> Chunk:
    """Make a chunk of up to 75 tokens."""
    made = Chunk(np.full(LENGTH, EOS, np.int64), np.ones(LENGTH, np.float32))
    made.ids[0] = BOS
    made.ids[1 : 1 + len(ids)] = ids
    made.weights[1 : 1 + len(ids)] = weights
    return made


def _number(text: str | None) -> np.float32 | None:
    """Read the weight in "(x:1.3)"; None for a malformed number, as "1.2.3", which then stays text."""
    try:
        return np.float32(text) if text else None
    except ValueError:
        return None


def _joined(parts: list[list]) -> list[Part | None]:
    """Join adjacent parts of equal weight, so that a word may span brackets: "un(happy:1)"."""
    joined: list[Part | None] = []
    for text, weight in parts:
        last = joined[-1] if joined else None
        if text == "BREAK" and weight == -1:
            joined.append(None)
        elif last is not None and last[1] == float(weight):
            joined[-1] = (last[0] + text, last[1])
        else:
            joined.append((text, float(weight)))
    return joined
