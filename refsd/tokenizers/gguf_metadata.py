"""Read a text encoder's tokenizer from the metadata of its GGUF file.

Keys as in llama.cpp, gguf-py/gguf/constants.py, Keys.Tokenizer.
"""

import numpy as np

from refsd.files.gguf_arrays import numbers, texts
from refsd.files.stored import Weights
from refsd.numerics.errors import BadInput
from refsd.tokenizers.byte_level import CUTS, byte_level
from refsd.tokenizers.sentence_pieces import SPECIAL, Pieces, merged_by_score, unigram
from refsd.tokenizers.text_tokenizer import Ends, TextTokenizer, numbered

KEY = "tokenizer.ggml."
ENDS = "bos_token_id", "eos_token_id", "padding_token_id"
MAX_CHARSMAP = 2**24  # bytes


def from_gguf(weights: Weights) -> TextTokenizer:
    """Build the tokenizer. Raises BadInput if the metadata has none, one of an unknown kind, or a damaged one."""
    model = weights.metadata.get(f"{KEY}model")
    if model not in _MODELS:
        found = "none" if model is None else ascii(model)[:40]
        raise BadInput(
            f"{weights.path}: {KEY}model: expected one of {', '.join(_MODELS)}, found {found}; give --tokenizer"
        )
    tokens = texts(weights, f"{KEY}tokens")
    bos, eos, pad = (_id(weights, KEY + key, len(tokens)) for key in ENDS)
    return _MODELS[model](weights, tokens, Ends(bos, eos, pad))


def _pairs(weights: Weights, tokens: list[str], ends: Ends) -> TextTokenizer:
    pre = weights.metadata.get(f"{KEY}pre", "default")
    if pre not in CUTS:
        raise BadInput(
            f"{weights.path}: {KEY}pre is {ascii(pre)[:40]}, expected one of {', '.join(CUTS)}; give --tokenizer"
        )
    source = str(weights.path)
    types = _types(weights, tokens)
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in SPECIAL]
    return byte_level(source, numbered(tokens, source), texts(weights, f"{KEY}merges"), special, CUTS[pre], ends)


def _scored(build):
    def made(weights: Weights, tokens: list[str], ends: Ends) -> TextTokenizer:
        pieces = Pieces(
            tokens,
            numbers(weights, f"{KEY}scores", "f"),
            _types(weights, tokens),
            _charsmap(weights),
            _flag(weights, f"{KEY}add_space_prefix"),
            _flag(weights, f"{KEY}remove_extra_whitespaces"),
        )
        return build(str(weights.path), pieces, ends)

    return made


_MODELS = {"gpt2": _pairs, "t5": _scored(unigram), "llama": _scored(merged_by_score)}


def _types(weights: Weights, tokens: list[str]) -> np.ndarray:
    types = numbers(weights, f"{KEY}token_type", "iu")
    if len(types) != len(tokens):
        raise BadInput(f"{weights.path}: {len(types)} token types, expected {len(tokens)}, one a token")
    return types


def _charsmap(weights: Weights) -> bytes:
    key = f"{KEY}precompiled_charsmap"
    if key not in weights.metadata:
        return b""
    array = numbers(weights, key, "iu")
    if array.dtype.itemsize == 8:  # a short array, which opening the file kept as int64
        array = (array & 255).astype(np.uint8)
    if array.dtype.itemsize != 1 or len(array) > MAX_CHARSMAP:
        raise BadInput(f"{weights.path}: metadata {key}: up to {MAX_CHARSMAP} bytes expected")
    return array.tobytes()


def _flag(weights: Weights, key: str) -> bool:
    value = weights.metadata.get(key, True)
    if not isinstance(value, bool):
        raise BadInput(f"{weights.path}: metadata {key}: true or false expected, found {ascii(value)[:40]}")
    return value


def _id(weights: Weights, key: str, tokens: int) -> int | None:
    value = weights.metadata.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < tokens:
        raise BadInput(f"{weights.path}: {key} is {ascii(value)[:40]}, expected an id below {tokens}")
    return value
