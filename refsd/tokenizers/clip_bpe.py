"""CLIP's byte-pair encoding with Hugging Face's `tokenizers`, built from the list of merges alone.

Radford et al. 2019, section 2.2 (bytes instead of characters); openai/CLIP, clip/simple_tokenizer.py.
"""

from collections.abc import Sequence

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

START, END = "<|startoftext|>", "<|endoftext|>"
BOS, EOS = 49406, 49407

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def byte_characters() -> list[str]:
    """Return a visible character for each byte, in the vocabulary's order: printable bytes first, then the rest.

    -> 256 characters; the first 188 have their byte as code point, the others stand for the remaining bytes, rising
    Source: openai/CLIP, simple_tokenizer.py, bytes_to_unicode.
    """
    printable = _printable()
    return [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]


def _printable() -> list[int]:
    return [*range(33, 127), *range(161, 173), *range(174, 256)]


def spelled(characters: str) -> str:
    """Return the text whose bytes a vocabulary writes as these characters; others stay as they are."""
    order = [*_printable(), *(b for b in range(256) if b not in _printable())]
    bytes_ = dict(zip(byte_characters(), order, strict=True))
    return b"".join(bytes([bytes_[c]]) if c in bytes_ else c.encode() for c in characters).decode(errors="replace")


def vocabulary(merges: Sequence[tuple[str, str]]) -> list[str]:
    """Return the tokens in order of their ids: bytes, bytes that end a word, merges, start, end.

    CLIP's 48894 merges make 49408 tokens.
    """
    single = byte_characters()
    return [*single, *(c + "</w>" for c in single), *(a + b for a, b in merges), START, END]


class ClipBpe:
    """Tokenizer with the same ids as transformers' CLIPTokenizer.

    It normalises text to NFC, white space to single blanks, and letters to lower case. OpenAI's tokenizer also
    repairs mojibake (ftfy) and unescapes HTML entities; callers who want that must do it first.
    "<|startoftext|>" and "<|endoftext|>" in the text become the special tokens. stable-diffusion.cpp ends a word at
    every character outside ASCII ("caf", "é"), and lowers ASCII letters only.

    merges: pairs of tokens, in order of priority
    source: origin of the merges, for messages
    """

    def __init__(self, merges: Sequence[tuple[str, str]], source: str):
        self.source = source
        ids = {token: i for i, token in enumerate(vocabulary(merges))}
        bpe = models.BPE(ids, list(merges), end_of_word_suffix="</w>", unk_token=END)
        self._tokenizer = HuggingFace(bpe)
        self._tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        self._tokenizer.add_special_tokens([START, END])

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone: without BOS, EOS, padding or a limit."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Return the text that the ids spell, with a blank behind each word."""
        return spelled("".join(self._tokenizer.id_to_token(i) or "" for i in ids).replace("</w>", " "))
