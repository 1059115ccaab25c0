"""CLIP's ids by the package instant-clip-tokenizer, a compiled extension that carries the vocabulary inside."""

import re
import unicodedata

from refsd.tokenizers.clip_bpe import BOS, END, EOS, START

_SPECIAL = re.compile(f"({re.escape(START)}|{re.escape(END)})")
_IDS = {START: BOS, END: EOS}


class InstantClip:
    """The same ids as ClipBpe's. The package splits, and merges; cleaning and special tokens happen here.

    Its vocabulary cannot be read out of it, so that these ids are its own and not those of
    Hugging Face's `tokenizers`.

    Raises ImportError where the package is not installed.
    """

    def __init__(self):
        import instant_clip_tokenizer

        self.source = "the package instant-clip-tokenizer"
        self._tokenizer = instant_clip_tokenizer.Tokenizer()  # pyright: ignore[reportAttributeAccessIssue]

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone: no BOS, no EOS, no padding, no limit."""
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            ids += [_IDS[part]] if part in _IDS else map(int, self._tokenizer.encode(_clean(part)))
        return ids


def _clean(text: str) -> str:
    """NFC, white space to blanks, lower case one character at a time (a sigma does not see its neighbours)."""
    text = re.sub(r"[^\S\x1c-\x1f]+", " ", unicodedata.normalize("NFC", text))
    return "".join(c.lower() for c in text)
