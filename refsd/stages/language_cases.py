"""The prompts that engines are asked to tokenize, and the vocabularies that they are given (language_tokens.py)."""

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from refsd.stages.stage import case


@functools.cache
def vocabularies() -> Mapping[str, Any]:
    return json.loads(resources.files("refsd.stages").joinpath("vocabularies.json").read_text())


def _bytes_with(*merges: str, **changes: Any) -> dict[str, Any]:
    """Return the byte vocabulary plus tokens merged of two: a blank is U+0120, a line end U+010A.

    added: tokens that no two make
    """
    known = vocabularies()["bytes"]
    tokens = [*known["tokens"], *changes.pop("added", ()), *(merge.replace(" ", "") for merge in merges)]
    return {**known, "tokens": tokens, "merges": [*known["merges"], *merges], **changes}


def _tekken() -> dict[str, Any]:
    """Return the byte vocabulary with Mistral's marks; no pair makes the word Hello, which is a token."""
    special = ["<s>", "</s>", "<pad>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]"]
    known = _bytes_with("lo W", "1 2", added=[*special, "Hello"], cut="tekken", ends=["<s>", "</s>", "<pad>"])
    return {**known, "special": special, "left": True}


def _gemma() -> dict[str, Any]:
    """Return pieces that merge by score: letters, some words, a run of blanks, and the 256 bytes."""
    words = ["at", "he", "the", "ca", "cat", "\u2581\u2581", "\u2581the", "\u2581cat", "\u00e9", "lo", "ve", "love"]
    letters = [chr(i) for i in range(33, 127)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>"]
    tokens = [*special, *(f"<0x{b:02X}>" for b in range(256)), *words, "\u2581", *letters]
    scores = [0.0] * (len(special) + 256) + [-float(i) for i in range(len(words) + 1 + len(letters))]
    return {"tokens": tokens, "scores": scores, "special": special, "ends": ["<bos>", "<eos>", "<pad>"]}


def _case(label: str, variant: str, encoder: str, engine: str, prompt: str, length: int | None = 24, known=None):
    vocabulary = known or vocabularies()["pieces" if encoder in ("t5", "anima-conditioner") else "bytes"]
    params = {"variant": variant, "encoder": encoder, "engine": engine, "prompt": prompt, "length": length}
    return case("language_tokens", label, **params, vocabulary=vocabulary)


# Two line ends, and a full stop with two line ends.
_LINE_ENDS = "\u010a \u010a", ". \u010a\u010a"
# Two digits, two blanks, a bracket with a word: tokens that the rule's words tear apart, or leave together.
_TORN = "1 2", "\u0120 \u0120", "( cat", "\u010a \u0120"
_RARE = "cafe\u0301 12,  3  (cat) \ufb01\n the 120\u00bd"
_CAPITALS = "  A lovely CAT,\nthe hat "
_FOREIGN = "caf\u00e9 \u65e5\u672c\u306e \U0001f431"
_WEIGHTS = "a (lovely:1.3) cat on [the] mat"
_LONG = "a lovely cat sat on the mat, and the other cats' hats were hers, they're"
_SPECIAL = "hello<|im_end|> <think>no</think> <|im_start|>Cat"

CASES = (
    _case("flux-t5", "flux-dev", "t5", "diffusers", _CAPITALS),
    _case("flux-t5-long", "flux-dev", "t5", "diffusers", _LONG),
    _case("flux-t5-sdcpp-long", "flux-dev", "t5", "sdcpp", _LONG),
    _case("flux-t5-sdcpp-long-weights", "flux-dev", "t5", "sdcpp", f"{_WEIGHTS}, {_WEIGHTS}"),
    _case("anima-t5-weights", "anima", "anima-conditioner", "sdcpp", _WEIGHTS, None),
    _case("anima-weights", "anima", "qwen3", "sdcpp", _WEIGHTS, None),
    _case("sd3-t5-sdcpp-weights", "sd3", "t5", "sdcpp", _WEIGHTS),
    _case("chroma-t5-mask", "chroma", "t5", "diffusers", "a lovely cat"),
    _case("chroma-t5-sdcpp", "chroma", "t5", "sdcpp", _FOREIGN),
    _case("wan", "wan", "t5", "diffusers", "a lovely cat"),
    _case("t5-empty", "flux-dev", "t5", "diffusers", ""),
    _case("zimage", "zimage", "qwen3", "diffusers", _CAPITALS, 40),
    _case("zimage-special", "zimage", "qwen3", "diffusers", _SPECIAL, 60),
    _case("zimage-empty", "zimage", "qwen3", "diffusers", "", 40),
    _case("zimage-sdcpp-weights", "zimage", "qwen3", "sdcpp", _WEIGHTS),
    _case("zimage-sdcpp-empty", "zimage", "qwen3", "sdcpp", ""),
    _case("zimage-lines", "zimage", "qwen3", "diffusers", "a cat.\n\nthe hat", 40, _bytes_with(*_LINE_ENDS)),
    _case("qwen-image", "qwen-image", "qwen2_5_vl", "diffusers", _CAPITALS, None),
    _case("qwen-image-long", "qwen-image", "qwen2_5_vl", "diffusers", _LONG, 300),
    _case("qwen-image-sdcpp-weights", "qwen-image", "qwen2_5_vl", "sdcpp", _WEIGHTS, None),
    _case("flux3", "flux3", "qwen3_vl", "diffusers", _CAPITALS, None),
    _case("flux3-long", "flux3", "qwen3_vl", "diffusers", f"{_LONG} {_LONG}", 150),
    _case("zimage-foreign", "zimage", "qwen3", "diffusers", _FOREIGN, 60),
    _case("zimage-rare", "zimage", "qwen3", "diffusers", _RARE, 60, _bytes_with(*_TORN)),
    _case("flux2-klein", "flux2-klein", "qwen3", "diffusers", _CAPITALS, 48),
    _case("flux2", "flux2-dev", "mistral", "diffusers", f"HelloWorld [IMG]{_RARE}", None, _tekken()),
    _case("lumina2", "lumina2", "gemma2", "diffusers", f"  {_FOREIGN}  the cat", None, _gemma()),
    _case("t5-blanks", "flux-dev", "t5", "diffusers", "the  cats'\t weather\n\n 12 the", 40),
)
