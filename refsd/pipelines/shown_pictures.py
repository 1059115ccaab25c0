"""Show pictures to a language model: the text that stands for them in the prompt, their tokens, their positions."""

from typing import NamedTuple

import numpy as np

from refsd.families.editing import Editing
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
    deepstack: [K, T, D], the tower's features for the first K layers; None: it has none
    """

    rule: TextRule
    tokens: np.ndarray
    grids: tuple[tuple[int, int], ...]
    mrope: bool
    deepstack: np.ndarray | None = None

    def inputs(self, input_ids: np.ndarray, attention_mask: np.ndarray, pad: int) -> dict[str, np.ndarray]:
        """Return the language model's further inputs. input_ids, attention_mask [1, L]; pad: id of PAD"""
        if (input_ids == pad).sum() != len(self.tokens):
            raise BadInput(f"the prompt holds {PAD}, which stands for the pictures to edit: leave it out")
        given = {"pictures": self.tokens} | ({} if self.deepstack is None else {"deepstack": self.deepstack})
        if not self.mrope:
            return given
        return given | {"positions": text_and_image_positions(input_ids, attention_mask, pad, self.grids)}

    def places(self, input_ids: np.ndarray, pad: int) -> tuple[int, ...]:
        """Return the number of each picture's first token. input_ids [1, L]; pad: id of PAD"""
        counts = [rows * columns for rows, columns in self.grids]
        first = np.cumsum([0, *counts[:-1]])
        return tuple(np.flatnonzero(input_ids[0] == pad)[first].tolist())


def show(tower: LoadedComponent, editing: Editing, pictures: tuple[np.ndarray, ...], rule: TextRule):
    """Let the vision tower see pictures, [1, 3 or 4, H, W], 0..1 each; rule: of the prompt without them."""
    side = tower.fits["H"].n
    mean, std = (np.reshape(colour, (3, 1, 1)) for colour in editing.colours)
    tokens, features, grids, text = [], [], [], ""
    for number, picture in enumerate(pictures, 1):
        seen = editing.seen(picture, side)
        outputs = tower({"x": (seen - mean) / std}, "--ref-image")
        tokens.append(outputs["tokens"][0])
        features += [outputs["deepstack"][0]] if "deepstack" in outputs else []
        grids.append((seen.shape[2] // side, seen.shape[3] // side))
        text += editing.before(number) + BEGIN + PAD * len(tokens[-1]) + END
    before, after = rule.around
    rule = rule._replace(around=(before + text, after))
    deepstack = np.concatenate(features, axis=1) if features else None
    return ShownPictures(rule, np.concatenate(tokens), tuple(grids), editing.mrope, deepstack)


def pad_of(tokenizer: TextTokenizer) -> int:
    """Return the id of PAD. Raises BadInput for a vocabulary without it."""
    pad = tokenizer.id_of(PAD)
    if pad is None:
        raise BadInput(f"{tokenizer.source}: the tokenizer has no {PAD}, which stands for the pictures to edit")
    return pad
