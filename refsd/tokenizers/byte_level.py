"""Byte-level byte-pair encoding: Qwen3 and Mistral (tekken).

Radford et al. 2019, section 2.2. The models differ in how they cut a text into words before they merge pairs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

from refsd.numerics.errors import BadInput
from refsd.tokenizers.text_tokenizer import Ends, TextTokenizer, in_one_line, recognise


class Cut(NamedTuple):
    """How a text is cut into words before pairs are merged.

    words:  regular expression; each match is a word, and so is the text between two matches
    nfc:    True if the text is normalised to NFC first
    whole:  True if a word that is a token is encoded as that token, without merging
    """

    words: str
    nfc: bool
    whole: bool


_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = Cut(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL, True, False
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = Cut(
    rf"{_LEAD}[{_UPPER}]*[{_LOWER}]+|{_LEAD}[{_UPPER}]+[{_LOWER}]*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}",
    False,
    True,
)
GPT2 = Cut(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", False, False)

# Value of tokenizer.ggml.pre -> Cut. Source: llama.cpp src/llama-vocab.cpp, which omits NFC, unlike transformers.
CUTS = {"qwen2": QWEN2, "deepseek-r1-qwen": QWEN2, "tekken": TEKKEN, "gpt-2": GPT2, "default": GPT2}


def byte_level(
    source: str,
    ids: Mapping[str, int],
    merges: Sequence[str],
    special: Sequence[str],
    cut: Cut,
    ends: Ends,
) -> TextTokenizer:
    """Build a byte-level BPE tokenizer.

    ids:    token -> id; a token's bytes are written as in clip_bpe.byte_characters
    merges: "a b" each, in order of priority

    Raises BadInput for a merge whose parts or result are no tokens.
    Source: transformers tokenization_qwen2.py; mistral-common tekken.py.
    """
    pairs = []
    for merge in merges:
        first, _, second = merge.partition(" ")
        if first not in ids or second not in ids or first + second not in ids:
            raise BadInput(f"{source}: merge {ascii(merge)[:40]}: expected two tokens that make a third")
        pairs.append((first, second))
    with in_one_line(source, "no byte-pair encoding"):
        tokenizer = HuggingFace(models.BPE(dict(ids), pairs, ignore_merges=cut.whole))
        if cut.nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(cut.words), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        recognise(tokenizer, special)
    return TextTokenizer(source, tokenizer, ends)
