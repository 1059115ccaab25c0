"""CLIP's tokenizer by the package instant-clip-tokenizer, a compiled extension that contains the vocabulary."""

import re
import unicodedata

from refsd.tokenizers.clip_bpe import BOS, END, EOS, START

_SPECIAL = re.compile(f"({re.escape(START)}|{re.escape(END)})")
_IDS = {START: BOS, END: EOS}


class InstantClip:
    """Tokenizer with the same ids as ClipBpe. The package splits and merges; this class does the rest.

    The package does not expose its vocabulary, so its own encoder makes the ids, not Hugging Face's `tokenizers`.

    Raises ImportError if the package is not installed.
    """

    def __init__(self):
        import instant_clip_tokenizer

        self.source = "the package instant-clip-tokenizer"
        self._tokenizer = instant_clip_tokenizer.Tokenizer()  # pyright: ignore[reportAttributeAccessIssue]

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone: without BOS, EOS, padding or a limit."""
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            ids += [_IDS[part]] if part in _IDS else map(int, self._tokenizer.encode(_clean(part)))
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text that the ids spell, with a blank behind each word."""
        return self._tokenizer.decode(ids)


def _clean(text: str) -> str:
    """Normalise to NFC, turn white space to blanks, and lower each character alone (a final sigma too)."""
    text = re.sub(r"[^\S\x1c-\x1f]+", " ", unicodedata.normalize("NFC", text))
    return "".join(c.lower() for c in text)
