"""How a prompt becomes the tokens of a text encoder: words around it, length, padding, mask."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.tokenizers.text_tokenizer import Ends

Rows = list[list[int]]

MAX_LENGTH = 2**16


def cut_off(ids: list[int], room: int) -> Rows:
    """What is over is not read; the end of the words around the prompt included."""
    return [ids[:room]]


def in_chunks(ids: list[int], room: int) -> Rows:
    """Each chunk is a row, with ends of its own; the encoder's answers are joined along the tokens."""
    return [ids[i : i + room] for i in range(0, max(len(ids), 1), room)]


def as_long_as_it_is(ids: list[int], room: int) -> Rows:
    return [ids]


class TextRule(NamedTuple):
    """
    length: tokens of a row, its ends included; None: the longest prompt's
    over:   what becomes of more tokens than that
    bos, eos: whether a row begins, ends with it
    pad:    an id; None: the tokenizer's padding, else its EOS
    mask:   whether the encoder is told which tokens are padding
    around: the words before and behind a prompt
    without: taken out of a prompt
    source: where this can be read
    """

    length: int | None
    over: Callable[[list[int], int], Rows]
    bos: bool = False
    eos: bool = False
    pad: int | None = None
    mask: bool = False
    around: tuple[str, str] = ("", "")
    without: str = ""
    source: str = ""


def token_rows(
    encode: Callable[[str], list[int]], ends: Ends, prompts: Sequence[str], rule: TextRule, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """The prompts as an encoder reads them.

    encode: text -> ids of the text alone
    -> input_ids, attention_mask: [N, L] int64; N is the prompts', more where one is longer than a chunk

    Raises BadInput where the tokenizer lacks an id that the rule asks for.
    """
    before = [_needed(ends.bos, "BOS", source)] if rule.bos else []
    behind = [_needed(ends.eos, "EOS", source)] if rule.eos else []
    around = len(before) + len(behind)
    if rule.length is not None and not around < rule.length <= MAX_LENGTH:
        raise BadInput(f"--length {rule.length}: expected {around + 1} to {MAX_LENGTH}")
    rows: Rows = []
    for prompt in prompts:
        text = prompt.replace(rule.without, "") if rule.without else prompt
        words = rule.around[0] + text + rule.around[1]
        rows += [before + row + behind for row in rule.over(encode(words), (rule.length or MAX_LENGTH) - around)]
    length = max([rule.length or 0, *map(len, rows)])
    mask = np.zeros((len(rows), length), np.int64)
    ids = np.zeros_like(mask)
    if any(len(row) < length for row in rows):
        pad = rule.pad if rule.pad is not None else ends.pad
        ids[:] = _needed(ends.eos if pad is None else pad, "padding", source)
    for i, row in enumerate(rows):
        at = length - len(row) if ends.left else 0
        ids[i, at : at + len(row)] = row
        mask[i, at : at + len(row)] = 1
    return ids, mask


def _needed(token: int | None, name: str, source: str) -> int:
    if token is None:
        raise BadInput(f"{source}: the tokenizer has no {name} token, which this family's prompts need")
    return token
