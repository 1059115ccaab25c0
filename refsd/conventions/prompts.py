"""Prompt cards: how each engine parses, chunks and weighs a prompt by default.

Like samplers/conventions.py: data and small functions, each tested in tests/refsd/tokenizers/test_cards.py.
"""

from collections.abc import Callable
from typing import NamedTuple

from refsd.tokenizers.chunking import Parts, at_commas, by_parts, cut_off
from refsd.tokenizers.comfyui_prompt import parse_weights
from refsd.tokenizers.emphasis import from_the_empty_prompt, mean_kept
from refsd.tokenizers.prompt import Chunk, cut, parse_attention
from refsd.tokenizers.sdcpp_prompt import parse_attention_sdcpp
from refsd.tokenizers.vocabulary import Tokenizer


class PromptCard(NamedTuple):
    """How one engine reads prompts.

    engine:    name of the engine
    parse:     prompt -> list of (text, weight); None for a BREAK
    chunk:     (tokenizer, parts) -> chunks of 77 tokens
    weigh:     (hidden states, weights) -> hidden states; ComfyUI's also takes the empty prompt's; None: weights
               have no effect
    layer:     (the user's clip skip, or None; the family's layer) -> layer of CLIP, counted from the last
    source:    the engine's files that this follows
    negative:  True if clip skip applies to the negative prompt too
    """

    engine: str
    parse: Callable[[str], Parts]
    chunk: Callable[[Tokenizer, Parts], list[Chunk]]
    weigh: Callable | None
    layer: Callable[[int | None, int], int]
    source: str = ""
    negative: bool = True


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


PROMPT_CARDS: dict[str, PromptCard] = {
    card.engine: card
    for card in (
        PromptCard(
            "sdcpp",
            parse_attention_sdcpp,
            cut,
            mean_kept,
            as_given,
            "stable-diffusion.cpp src/conditioner.hpp, src/util.cpp",
        ),
        PromptCard(
            "comfyui",
            parse_weights,
            by_parts,
            from_the_empty_prompt,
            negative,
            "ComfyUI comfy/sd1_clip.py, nodes.py",
        ),
        PromptCard(
            "a1111",
            parse_attention,
            at_commas,
            mean_kept,
            at_least_the_familys,
            "A1111 modules/prompt_parser.py, sd_hijack_clip.py, sd_emphasis.py",
        ),
        PromptCard(
            "forge",
            parse_attention,
            at_commas,
            mean_kept,
            at_least_the_familys,
            "Forge backend/text_processing/classic_engine.py, emphasis.py, parsing.py",
        ),
        PromptCard(
            "diffusers",
            literally,
            cut_off,
            None,
            skipped,
            "diffusers pipelines/stable_diffusion/pipeline_stable_diffusion.py, encode_prompt",
            negative=False,
        ),
    )
}
