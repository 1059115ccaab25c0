"""How a prompt goes into each family's text encoders: words around it, length, padding, mask; engine by engine."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from refsd.golden.errors import BadInput
from refsd.tokenizers.text_tokenizer import Ends

Rows = list[list[int]]

MAX_LENGTH = 2**16
SYSTEM = (
    "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on "
    "object relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]"
)
USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
NOT_THINKING = ASSISTANT + "<think>\n\n</think>\n\n"


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


_D, _SD = "diffusers pipelines/", "stable-diffusion.cpp src/conditioning/conditioner.hpp "
_CLIP = TextRule(77, cut_off, bos=True, eos=True, source=_D + "stable_diffusion_xl, encode_prompt")
_OPEN_CLIP = _CLIP._replace(pad=0)
_CLIP_CHUNKS = _CLIP._replace(over=in_chunks, source=_SD + "tokenize")
_OPEN_CLIP_CHUNKS = _CLIP_CHUNKS._replace(pad=0)
_T5 = TextRule(512, cut_off, eos=True, source=_D + "flux, _get_t5_prompt_embeds")
_T5_CHUNKS = TextRule(256, in_chunks, eos=True, source=_SD + "FluxCLIPEmbedder")
_QWEN3 = TextRule(512, cut_off, mask=True, source=_D + "z_image, _encode_prompt")
_QWEN3_SD = TextRule(None, as_long_as_it_is, mask=True, source=_SD + "LLMEmbedder")
_MISTRAL = TextRule(512, cut_off, bos=True, mask=True, around=(SYSTEM, "[/INST]"))

# (family, component, engine). FLUX.2 dev's padding in stable-diffusion.cpp is zeros in the context, not tokens.
TEXT_RULES: dict[tuple[str, str, str], TextRule] = {
    ("sd1", "clip", "diffusers"): _CLIP,
    ("sd1", "clip", "sdcpp"): _CLIP_CHUNKS,
    ("sd2", "clip", "diffusers"): _OPEN_CLIP,
    ("sd2", "clip", "sdcpp"): _OPEN_CLIP_CHUNKS,
    ("sdxl", "clip", "diffusers"): _CLIP,
    ("sdxl", "clip", "sdcpp"): _CLIP_CHUNKS,
    ("sdxl", "clip_g", "diffusers"): _OPEN_CLIP,
    ("sdxl", "clip_g", "sdcpp"): _OPEN_CLIP_CHUNKS,
    ("sd3", "clip", "diffusers"): _CLIP,
    ("sd3", "clip", "sdcpp"): _CLIP_CHUNKS,
    ("sd3", "clip_g", "diffusers"): _OPEN_CLIP,
    ("sd3", "clip_g", "sdcpp"): _OPEN_CLIP_CHUNKS,
    ("sd3", "t5", "diffusers"): _T5._replace(length=256, source=_D + "stable_diffusion_3, _get_t5_prompt_embeds"),
    ("sd3", "t5", "sdcpp"): _T5_CHUNKS._replace(length=77, source=_SD + "SD3CLIPEmbedder"),
    ("flux", "clip", "diffusers"): _CLIP,
    ("flux", "clip", "sdcpp"): _CLIP,
    ("flux", "t5", "diffusers"): _T5,
    ("flux", "t5", "sdcpp"): _T5_CHUNKS,
    ("chroma", "t5", "diffusers"): _T5._replace(mask=True, source=_D + "chroma, _get_t5_prompt_embeds"),
    ("chroma", "t5", "sdcpp"): _T5_CHUNKS._replace(length=512, source=_SD + "T5CLIPEmbedder, use_mask false"),
    ("zimage", "qwen3", "diffusers"): _QWEN3._replace(around=(USER, ASSISTANT)),
    ("zimage", "qwen3", "sdcpp"): _QWEN3_SD._replace(around=(USER, ASSISTANT)),
    ("flux2-klein", "qwen3", "diffusers"): _QWEN3._replace(
        around=(USER, NOT_THINKING), source=_D + "flux2, pipeline_flux2_klein.py"
    ),
    ("flux2-klein", "qwen3", "sdcpp"): _QWEN3_SD._replace(
        length=512, around=(USER, NOT_THINKING), source=_SD + "LLMEmbedder, min_length"
    ),
    ("flux2-dev", "mistral", "diffusers"): _MISTRAL._replace(without="[IMG]", source=_D + "flux2, format_input"),
    ("flux2-dev", "mistral", "sdcpp"): _MISTRAL._replace(
        length=None, over=as_long_as_it_is, source=_SD + "LLMEmbedder, hidden_states_min_length"
    ),
}
# Of a component where no family is named.
FAMILY = {"clip": "sd1", "clip_g": "sdxl", "t5": "flux", "qwen3": "zimage", "mistral": "flux2-dev"}


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
