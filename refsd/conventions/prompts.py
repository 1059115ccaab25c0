"""Cards of prompts: how engines parse, chunk and weigh a prompt and find names of learned embeddings in it."""

import re
from collections.abc import Callable
from typing import NamedTuple

from refsd.tokenizers.chunking import Parts
from refsd.tokenizers.prompt import Chunk
from refsd.tokenizers.textual_inversion import Find
from refsd.tokenizers.vocabulary import Tokenizer

_EDITS = re.compile(r":\s*[-+]?[\d.]+(e[-+]?\d+)?\s*\]|(?<!\\)\[[^\]]*\||\bAND\b|<\w+:[^>]+>")


class PromptCard(NamedTuple):
    """How one engine reads prompts.

    engine:    name of the engine
    parse:     prompt -> list of (text, weight); None for a BREAK
    chunk:     (tokenizer, parts) -> chunks of 77 tokens
    weigh:     (hidden states, weights) -> hidden states; ComfyUI's also takes the empty prompt's; None: weights
               have no effect
    layer:     (the user's clip skip, or None; the family's layer) -> layer of CLIP, counted from the last
    find:      how the name of a learned embedding is found in a prompt
    source:    the engine's files that this follows
    negative:  True if clip skip applies to the negative prompt too
    joins:     True if neighbouring parts of one weight are one text for a language model's tokenizer
    """

    engine: str
    parse: Callable[[str], Parts]
    chunk: Callable[[Tokenizer, Parts], list[Chunk]]
    weigh: Callable | None
    layer: Callable[[int | None, int], int]
    find: Find
    source: str = ""
    negative: bool = True
    joins: bool = True


def never(prompt: str) -> bool:
    """Return False: no prompt changes during sampling."""
    return False


def edited_or_combined(prompt: str) -> bool:
    """Return True if a prompt holds A1111's [from:to:when], [one|other], AND, or the name of an extra network.

    Source: A1111 modules/prompt_parser.py, schedule_parser, re_AND; modules/extra_networks.py, re_extra_net.
    """
    return _EDITS.search(prompt) is not None


def literally(prompt: str) -> Parts:
    """Return the whole prompt as one part of weight 1; brackets are plain text."""
    return [(prompt, 1.0)]


def at_least_the_familys(clip_skip: int | None, own: int) -> int:
    """Count clip skip from the last layer = 1, but no less than the family's layer (SDXL: 2).

    Source: Forge backend/text_processing/classic_engine.py.
    """
    return max(clip_skip or 1, own)


def as_given(clip_skip: int | None, own: int) -> int:
    """Count clip skip from the last layer = 1, for SDXL too. Source: stable-diffusion.cpp conditioner.hpp."""
    return clip_skip if clip_skip is not None and clip_skip > 0 else own


def negative(clip_skip: int | None, own: int) -> int:
    """Count clip skip in negative numbers, from the last layer = -1. Source: ComfyUI nodes.py, CLIPSetLastLayer."""
    return own if clip_skip is None else -clip_skip


def skipped(clip_skip: int | None, own: int) -> int:
    """Skip `clip_skip` layers more than the family does. Source: diffusers encode_prompt, clip_skip."""
    return own + (clip_skip or 0)
