"""Rules by which a prompt becomes a text encoder's tokens: template, length, padding, mask."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.tokenizers.text_tokenizer import Ends

Rows = list[list[int]]

MAX_LENGTH = 2**16


def cut_off(ids: list[int], room: int) -> Rows:
    """Drop tokens beyond the length, even those of the template after the prompt."""
    return [ids[:room]]


def in_chunks(ids: list[int], room: int) -> Rows:
    """Split into rows, each with its own BOS and EOS; the caller joins the encoder's outputs along the tokens."""
    return [ids[i : i + room] for i in range(0, max(len(ids), 1), room)]


def as_long_as_it_is(ids: list[int], room: int) -> Rows:
    return [ids]


class TextRule(NamedTuple):
    """How a family turns a prompt into rows of token ids.

    length: tokens per row, BOS and EOS included; None: as long as the longest prompt
    fill:   False: longer prompts are cut to the length, shorter ones are not padded to it
    least:  rows that are not filled to a length are padded to so many tokens at least
    over:   what to do with longer prompts: (ids, room) -> rows
    bos, eos: True if a row begins with BOS, ends with EOS
    pad:    id of the padding; None: the tokenizer's padding, else its EOS
    mask:   True if the encoder receives a mask of the padding
    around: template: the text before and after the prompt
    without: text to remove from the prompt
    kept:   tokens at the end, of the template, that are never cut; padding stands before them, on the right of the
            prompt
    multiple: rows are padded to a multiple of so many tokens, at most to the length
    positions: mask [N, L] -> the positions that the encoder receives, [N, L, 3]; None: none, a token's place counts
    drop:   tokens at the start, of the template, whose hidden states the denoiser does not take
    empty:  text in the place of an empty prompt
    empty_ends: False if the empty prompt that weights count from is padding alone, without EOS
    plain:  True if brackets are plain text in the encoder's prompts, whatever weights the engine reads elsewhere
    final_norm: False if the denoiser takes the output of the encoder's last layer before its norm
    source: code that this rule follows
    """

    length: int | None
    over: Callable[[list[int], int], Rows]
    bos: bool = False
    eos: bool = False
    pad: int | None = None
    mask: bool = False
    around: tuple[str, str] = ("", "")
    without: str = ""
    kept: int = 0
    drop: int = 0
    empty: str = ""
    empty_ends: bool = True
    final_norm: bool = True
    fill: bool = True
    least: int = 1
    plain: bool = False
    multiple: int = 1
    positions: Callable[[np.ndarray], np.ndarray] | None = None
    source: str = ""

    def text(self, prompt: str) -> str:
        """Return the text that stands inside the template."""
        return (prompt.replace(self.without, "") if self.without else prompt) or self.empty


def token_rows(
    encode: Callable[[str], list[int]], ends: Ends, prompts: Sequence[str], rule: TextRule, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """Turn prompts into an encoder's inputs.

    encode: text -> ids of the text alone
    -> input_ids, attention_mask: [N, L] int64; one row per prompt, or several for a prompt longer than a chunk. A
       prompt without tokens is one of padding

    Raises BadInput if the tokenizer lacks an id that the rule needs.
    """
    before = [_needed(ends.bos, "BOS", source)] if rule.bos else []
    behind = [_needed(ends.eos, "EOS", source)] if rule.eos else []
    around = len(before) + len(behind)
    if rule.length is not None and not around < rule.length <= MAX_LENGTH:
        raise BadInput(f"--length {rule.length}: expected {around + 1} to {MAX_LENGTH}")
    rows: Rows = []
    for prompt in prompts:
        words = encode(rule.around[0] + rule.text(prompt) + rule.around[1])
        end = len(words) - rule.kept
        room = (rule.length or MAX_LENGTH) - around - rule.kept
        rows += [before + row + words[end:] + behind for row in rule.over(words[:end], room)]
    longest = max([rule.length if rule.length and rule.fill else rule.least, *map(len, rows)])
    length = min(-(-longest // rule.multiple) * rule.multiple, max(longest, rule.length or MAX_LENGTH))
    mask = np.zeros((len(rows), length), np.int64)
    ids = np.zeros_like(mask)
    if any(len(row) < length for row in rows):
        pad = rule.pad if rule.pad is not None else ends.pad
        ids[:] = _needed(ends.eos if pad is None else pad, "padding", source)
    for i, row in enumerate(rows):
        places = np.arange(len(row)) + (length - len(row) if ends.left and not rule.kept else 0)
        places[len(row) - rule.kept :] = np.arange(length - rule.kept, length)
        ids[i, places], mask[i, places] = row, 1
    return ids, mask


def first_taken(mask: np.ndarray, rule: TextRule) -> np.ndarray:
    """Return the place of the first token whose hidden state the denoiser takes. mask [N, L] -> [N]

    All are taken, padding in front included, unless the rule drops the template's beginning.
    """
    return mask.argmax(axis=1) + rule.drop if rule.drop else np.zeros(len(mask), np.int64)


def counted_positions(mask: np.ndarray) -> np.ndarray:
    """Count the tokens that are seen: the three positions of each, for M-RoPE. mask [N, L] -> [N, L, 3] int64

    Source: diffusers Krea2Pipeline.get_text_hidden_states.
    """
    number = np.maximum((mask != 0).cumsum(axis=1) - 1, 0)
    return np.repeat(number[..., None], 3, axis=2)


def places_with_padding_at_1(mask: np.ndarray) -> np.ndarray:
    """Return each token's place in its row, and 1 for padding: the three positions of each.

    mask [N, L] -> [N, L, 3] int64. transformers 4 gave padding these positions.

    Source: diffusers Flux3TextEncoderStep.
    """
    place = np.where(mask != 0, np.arange(mask.shape[1]), 1)
    return np.repeat(place[..., None], 3, axis=2)


def _needed(token: int | None, name: str, source: str) -> int:
    if token is None:
        raise BadInput(f"{source}: the tokenizer has no {name} token, which this family's prompts need")
    return token
