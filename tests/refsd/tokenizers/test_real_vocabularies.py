"""Qwen's and Mistral's own vocabularies, as far as a list of prompts comes upon them; T5's pieces.

The originals are transformers and mistral-common. stable-diffusion.cpp cuts words in another way: where it gives
other ids, so does refsd with that cut.
"""

import json
import re
from pathlib import Path

import pytest
from tiny_tokenizers import unigram_gguf

from refsd.tokenizers.byte_level import QWEN2, TEKKEN, Cut, byte_level
from refsd.tokenizers.text_tokenizer import Ends
from refsd.tokenizers.tokenizer_files import open_tokenizer

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "sdcpp_tokens.json").read_text())
PROMPTS = RECORDED["prompts"]
CUTS = {"qwen2": QWEN2, "tekken": TEKKEN}
# stable-diffusion.cpp, tokenize_util.cpp, token_split, of both: only 0 to 9 are digits, 'd is no ending, blanks are
# one word with none left for the next, and nothing is composed.
SDCPP = Cut(
    r"(?i:'s|'t|'m|'re|'ve|'ll)|[0-9]|[^\r\n\p{L}]?\p{L}+| ?[^\s\p{L}0-9]+[\r\n]*|[^\S\r\n]*[\r\n]+[^\S\r\n]?|\s+",
    nfc=False,
    whole=False,
)
# It asks C's isspace, which is not made for them: they are blanks, and then none. Others may be on other machines.
LOST = "\U0001f680\ufe0f"


def tokenizer(kind, cut):
    vocabulary = RECORDED[kind]
    parts = (vocabulary[part] for part in ("ids", "merges", "special"))
    return byte_level(kind, *parts, cut, Ends())


def of(kind, by):
    """Prompt -> ids; mistral-common reads no special token out of a text."""
    return {t: ids for t, ids in zip(PROMPTS, RECORDED[kind][by], strict=True) if kind == "qwen2" or "<|" not in t}


@pytest.mark.parametrize("kind", CUTS)
def test_the_originals(kind):
    ours = tokenizer(kind, CUTS[kind])
    for text, ids in of(kind, "original").items():
        assert ours.encode(text) == ids, text


def as_it_reads(text):
    """The endings that it knows are written small; a blank after a line's end comes twice; what it loses."""
    text = re.sub("'(s|t|m|re|ve|ll)", lambda found: found[0].lower(), text, flags=re.I)
    text = re.sub(r"(?<=[\w\s])\n(?=[^\S\r\n])", "\n ", text)
    return text.translate(dict.fromkeys(map(ord, LOST)))


@pytest.mark.parametrize(("kind", "others"), [("qwen2", 12), ("tekken", 11)])
def test_stable_diffusion_cpp_cuts_otherwise(kind, others):
    ours, original = tokenizer(kind, SDCPP), of(kind, "original")
    for text, ids in of(kind, "sdcpp").items():
        assert ours.encode(as_it_reads(text)) == ids, text
    assert sum(ids != original[text] for text, ids in of(kind, "sdcpp").items()) == others


def test_t5_s_pieces(tmp_path):
    """On plain words: in others it composes nothing, and knows neither tabs nor line ends."""
    pieces = RECORDED["t5"]["pieces"]
    path = unigram_gguf(tmp_path / "t5.gguf", [(piece, score) for piece, score, _ in pieces])
    ours, number = open_tokenizer(path, "t5"), [i for *_, i in pieces]
    plain = {
        text: ids
        for text, ids in of("t5", "sdcpp").items()
        if re.fullmatch(r"[!-~][ -~]*[!-~]", text) and "  " not in text
    }
    assert len(plain) == 9
    for text, ids in plain.items():
        assert [number[i] for i in ours.encode(text)] == ids, text
