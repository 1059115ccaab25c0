"""CLIP's byte-pair encoding, by Hugging Face's `tokenizers`, from nothing but the list of merges.

Radford et al. 2019, section 2.2 (bytes instead of characters); openai/CLIP, clip/simple_tokenizer.py.
"""

from collections.abc import Sequence

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

START, END = "<|startoftext|>", "<|endoftext|>"
BOS, EOS = 49406, 49407

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def byte_characters() -> list[str]:
    """A visible character for each byte, in the vocabulary's order: printable bytes as they are, then the rest.

    -> 256 characters; the byte of the first 188 is their code point, the others' are the bytes left over, rising
    Source: openai/CLIP, simple_tokenizer.py, bytes_to_unicode.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]


def vocabulary(merges: Sequence[tuple[str, str]]) -> list[str]:
    """The tokens in the order of their ids: bytes, bytes that end a word, merges, start, end.

    CLIP's 48894 merges make 49408 tokens.
    """
    single = byte_characters()
    return [*single, *(c + "</w>" for c in single), *(a + b for a, b in merges), START, END]


class ClipBpe:
    """Ids as transformers' CLIPTokenizer gives them.

    Text cleaning is NFC, white space to single blanks, lower case. OpenAI's own also mends mojibake
    (ftfy) and unescapes HTML entities; who wants that does it before.
    "<|startoftext|>" and "<|endoftext|>" in the text are the special tokens. stable-diffusion.cpp ends
    a word at every character outside ASCII ("caf", "é"), and lowers ASCII only.

    merges: pairs, the first to be merged first
    source: where they came from, to be shown
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
        """Ids of the text alone: no BOS, no EOS, no padding, no limit."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids
