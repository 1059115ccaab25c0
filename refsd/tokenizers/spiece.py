"""Read a spiece.model, sentencepiece's protocol buffer: three of its fields.

Hugging Face's `tokenizers` tokenizes the text. This module reads the container itself, to avoid a dependency.
Source: google/sentencepiece, src/sentencepiece_model.proto; protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.tokenizers.sentence_pieces import BYTE, NORMAL, USER_DEFINED, Pieces, merged_by_score, unigram
from refsd.tokenizers.text_tokenizer import Ends, TextTokenizer

LIMIT = 2**26  # bytes of the file
MAX_PIECES = 2**20
EXTRA = 100  # T5's sentinel tokens, which follow the file's tokens
_BUILD = {1: unigram, 2: merged_by_score}  # trainer_spec.model_type

Value = int | bytes


def read_spiece(path: Path, data: bytes) -> TextTokenizer:
    """Build the tokenizer, with the file's BOS, EOS and padding.

    A unigram model gets T5's <extra_id_99> to <extra_id_0> after its pieces.

    Raises BadInput for another format, or a model that is neither unigram nor BPE.
    """
    try:
        tokens, scores, types = [], [], []
        kind, charsmap, prefix, squeeze = 1, b"", True, True
        ends = {41: 1, 42: 2, 43: -1}  # trainer_spec's bos_id, eos_id, pad_id
        for field, value in _fields(data):
            if field == 1:
                piece = dict(_fields(_bytes(value)))
                tokens.append(_bytes(piece.get(1, b"")).decode())
                scores.append(struct.unpack("<f", _bytes(piece.get(2, bytes(4))))[0])
                types.append(_int(piece.get(3, NORMAL)))
            elif field == 2:
                spec = dict(_fields(_bytes(value)))
                kind = _int(spec.get(3, 1))
                ends = {n: _signed(_int(spec.get(n, default))) for n, default in ends.items()}
            elif field == 3:
                spec = dict(_fields(_bytes(value)))
                charsmap = _bytes(spec.get(2, b""))
                prefix, squeeze = bool(spec.get(3, 1)), bool(spec.get(4, 1))
            if types and not NORMAL <= types[-1] <= BYTE:
                raise ValueError(f"a piece of type {types[-1]}")
            if len(tokens) > MAX_PIECES:
                raise ValueError(f"more than {MAX_PIECES} pieces")
    except (ValueError, struct.error, IndexError) as error:
        raise BadInput(f"{path}: expected a sentencepiece model, cannot be read as such: {error}") from None
    if kind not in _BUILD:
        raise BadInput(f"{path}: model type {kind}, expected 1 (unigram) or 2 (BPE)")
    bos, eos, pad = (n if 0 <= n < len(tokens) else None for n in ends.values())
    if kind == 1:
        extra = [f"<extra_id_{i}>" for i in range(EXTRA - 1, -1, -1)]
        there = set(tokens)
        new = [token for token in extra if token not in there]
        tokens, scores, types = tokens + new, scores + [0.0] * len(new), types + [USER_DEFINED] * len(new)
    made = Pieces(tokens, np.array(scores, np.float64), np.array(types, np.int64), charsmap, prefix, squeeze)
    return _BUILD[kind](str(path), made, Ends(bos, eos, pad))


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and value of each field; check lengths against the bytes that are left."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire in (1, 2, 5):
            n, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            if n > len(data) - at:
                raise ValueError(f"a field of {n} bytes at byte {at}, {len(data) - at} are left")
            value, at = data[at : at + n], at + n
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError(f"a number of more than ten bytes at byte {at}")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes are expected")
    return value


def _int(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number is expected")
    return value
