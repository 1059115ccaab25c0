"""Sentencepiece's two models: T5's and UMT5's unigram language model, and Llama's BPE, which merges by score.

Kudo 2018; Kudo & Richardson 2018; Sennrich et al. 2016. Tokens write a blank as U+2581.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, normalizers, pre_tokenizers

from refsd.numerics.errors import BadInput
from refsd.tokenizers.text_tokenizer import Ends, TextTokenizer, in_one_line, numbered, recognise

BLANK = "\u2581"
LONGEST_PIECE = 256  # characters
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL = UNKNOWN, CONTROL, USER_DEFINED


class Pieces(NamedTuple):
    """A sentencepiece vocabulary and its normalisation.

    tokens:   in order of their ids
    scores:   log probabilities (unigram), or minus the rank of a merge (BPE)
    types:    NORMAL to BYTE
    charsmap: sentencepiece's compiled normalisation; empty: none
    prefix:   True if a blank is added before the text
    squeeze:  True if blanks at both ends are removed, and runs of blanks become one
    """

    tokens: Sequence[str]
    scores: np.ndarray
    types: np.ndarray
    charsmap: bytes = b""
    prefix: bool = True
    squeeze: bool = True


def unigram(source: str, pieces: Pieces, ends: Ends) -> TextTokenizer:
    """Build a unigram tokenizer. Raises BadInput if the pieces are inconsistent.

    Source: transformers tokenization_t5.py.
    """
    _checked(source, pieces)
    unknown = np.flatnonzero(pieces.types == UNKNOWN)
    if len(unknown) != 1:
        raise BadInput(f"{source}: expected one token of type unknown, found {len(unknown)}")
    with in_one_line(source, "no unigram model"):
        scored = list(zip(pieces.tokens, map(float, pieces.scores), strict=True))
        tokenizer = HuggingFace(models.Unigram(scored, int(unknown[0]), byte_fallback=False))
        if pieces.charsmap:
            tokenizer.normalizer = normalizers.Precompiled(pieces.charsmap)
        blanks = pre_tokenizers.Metaspace(BLANK, "always" if pieces.prefix else "never", split=True)
        words = [pre_tokenizers.WhitespaceSplit()] if pieces.squeeze else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, blanks])
        recognise(tokenizer, _special(pieces))
    return TextTokenizer(source, tokenizer, ends)


def merged_by_score(source: str, pieces: Pieces, ends: Ends) -> TextTokenizer:
    """Build a BPE tokenizer that merges the pair whose token has the highest score first.

    Characters without a token become byte tokens. Raises BadInput if the pieces are inconsistent.
    Source: transformers tokenization_llama.py.
    """
    ids = _checked(source, pieces)
    merges = []
    for token, score, kind in zip(pieces.tokens, pieces.scores, pieces.types, strict=True):
        if kind not in (NORMAL, USER_DEFINED):
            continue
        for i in range(1, len(token)):
            if token[:i] in ids and token[i:] in ids:
                merges.append((-float(score), -i, token[:i], token[i:]))
    merges.sort(key=lambda merge: merge[:2])
    with in_one_line(source, "no byte-pair encoding"):
        unknown = next((t for t, kind in zip(pieces.tokens, pieces.types, strict=True) if kind == UNKNOWN), None)
        bpe = models.BPE(ids, [m[2:] for m in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True)
        tokenizer = HuggingFace(bpe)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            BLANK, "first" if pieces.prefix else "never", split=False
        )
        recognise(tokenizer, _special(pieces))
    return TextTokenizer(source, tokenizer, ends)


def _special(pieces: Pieces) -> list[str]:
    return [t for t, kind in zip(pieces.tokens, pieces.types, strict=True) if kind in SPECIAL]


def _checked(source: str, pieces: Pieces) -> dict[str, int]:
    ids = numbered(pieces.tokens, source)
    for name, array in (("scores", pieces.scores), ("token types", pieces.types)):
        if len(array) != len(ids):
            raise BadInput(f"{source}: {len(array)} {name}, expected {len(ids)}, one a token")
    if not np.isfinite(pieces.scores).all():
        raise BadInput(f"{source}: the score of token {int(np.argmin(np.isfinite(pieces.scores)))} is not finite")
    longest = max(pieces.tokens, key=len)
    if len(longest) > LONGEST_PIECE:
        raise BadInput(f"{source}: a token of {len(longest)} characters, at most {LONGEST_PIECE} expected")
    return ids
