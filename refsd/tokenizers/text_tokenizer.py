"""The tokenizer class of T5, Qwen3 and Mistral: Hugging Face's `tokenizers`, and ids of BOS, EOS and padding."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFace

from refsd.numerics.errors import BadInput

LONGEST = 2**20  # characters of a text


class Ends(NamedTuple):
    """Ids of BOS, EOS and padding; None if the tokenizer does not define them.

    left: True if padding comes before the text
    """

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    left: bool = False


class TextTokenizer:
    """A tokenizer.

    source: origin of the vocabulary, for messages
    """

    def __init__(self, source: str, tokenizer: HuggingFace, ends: Ends):
        self.source, self.ends = source, ends
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone, without BOS, EOS, padding or a limit; special tokens are recognised.

        Raises BadInput if the text is invalid Unicode or too long, or the vocabulary is damaged.
        """
        if len(text) > LONGEST:
            raise BadInput(f"the prompt has {len(text)} characters, at most {LONGEST} expected")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"the prompt is no Unicode: half a surrogate pair at character {error.start}") from None
        with in_one_line(self.source, "cannot encode the prompt"):
            return self._tokenizer.encode(text, add_special_tokens=False).ids

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


@contextlib.contextmanager
def in_one_line(source: str, what: str) -> Iterator[None]:
    """Turn any error of the library into BadInput; its panics derive from BaseException."""
    try:
        yield
    except (BadInput, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:160]
        raise BadInput(f"{source}: {what}: {reason}") from None


def numbered(tokens: Sequence[str], source: str) -> dict[str, int]:
    """Return token -> id. Raises BadInput for an empty list and for duplicate tokens."""
    ids = {token: i for i, token in enumerate(tokens)}
    if not tokens or len(ids) != len(tokens):
        twice = next((token for i, token in enumerate(tokens) if ids[token] != i), None)
        found = "no tokens" if twice is None else f"token {ascii(twice)[:40]} is there twice"
        raise BadInput(f"{source}: the vocabulary is damaged: {found}")
    return ids


def recognise(tokenizer: HuggingFace, special: Sequence[str]) -> None:
    """Declare special tokens, which are matched in the text before normalisation and splitting."""
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special if token])
