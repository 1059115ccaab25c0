"""Show pictures to a language model: the text that stands for them in the prompt, their tokens, their positions."""

from typing import NamedTuple

import numpy as np

from refsd.families.editing import MEAN, STD, Editing
from refsd.models.qwen_vl import text_and_image_positions
from refsd.numerics.errors import BadInput
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.tokenizers.text_rules import TextRule
from refsd.tokenizers.text_tokenizer import TextTokenizer

BEGIN, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"


class ShownPictures(NamedTuple):
    """Pictures as a language model's inputs.

    rule:   how a prompt with them becomes tokens
    tokens: [T, D], the vision tower's, of all pictures in turn
    grids:  rows and columns of each picture's tokens
    mrope:  see Editing
    """

    rule: TextRule
    tokens: np.ndarray
    grids: tuple[tuple[int, int], ...]
    mrope: bool

    def inputs(self, input_ids: np.ndarray, attention_mask: np.ndarray, pad: int) -> dict[str, np.ndarray]:
        """Return the language model's further inputs. input_ids, attention_mask [1, L]; pad: id of PAD"""
        if (input_ids == pad).sum() != len(self.tokens):
            raise BadInput(f"the prompt holds {PAD}, which stands for the pictures to edit: leave it out")
        if not self.mrope:
            return {"pictures": self.tokens}
        positions = text_and_image_positions(input_ids, attention_mask, pad, self.grids)
        return {"pictures": self.tokens, "positions": positions}


def show(tower: LoadedComponent, editing: Editing, pictures: tuple[np.ndarray, ...], rule: TextRule):
    """Let the vision tower see pictures, [1, 3, H, W], 0..1 each; rule: of the prompt without them."""
    side = tower.fits["H"].n
    tokens, grids, text = [], [], ""
    for number, picture in enumerate(pictures, 1):
        seen = editing.seen(picture, side)
        normal = (seen - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
        tokens.append(tower({"x": normal}, "--ref-image")["tokens"][0])
        grids.append((seen.shape[2] // side, seen.shape[3] // side))
        text += editing.before(number) + BEGIN + PAD * len(tokens[-1]) + END
    before, after = rule.around
    rule = rule._replace(around=(before + text, after))
    return ShownPictures(rule, np.concatenate(tokens), tuple(grids), editing.mrope)


def pad_of(tokenizer: TextTokenizer) -> int:
    """Return the id of PAD. Raises BadInput for a vocabulary without it."""
    pad = tokenizer.id_of(PAD)
    if pad is None:
        raise BadInput(f"{tokenizer.source}: the tokenizer has no {PAD}, which stands for the pictures to edit")
    return pad
