"""Textual inversion: learned vectors that stand in a prompt under a name, as tokens behind CLIP's vocabulary.

Gal et al. 2022. A file holds one name's vectors, for one text encoder or for SDXL's two:

    string_to_param.*       [n, E]   A1111's .pt (a dict in a dict), which also has "name"
    emb_params              [n, E]   A1111's .safetensors
    clip_l, clip_g          [n, E]   of SDXL
    <token>                 [E] or [n, E]   diffusers' learned_embeds: the one tensor's name is the token

The name is that of the file without its suffix; with diffusers' rule it is the token, where the file has one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.tokenizers.clip_bpe import EOS
from refsd.tokenizers.vocabulary import Tokenizer

FIRST = EOS + 1  # id of the first vector
SUFFIXES = (".pt", ".ckpt", ".bin", ".safetensors")
_UNNAMED = ("string_to_param.*", "emb_params")
# Tensor of a file -> encoder.
_OF_ENCODERS = {"clip_l": "clip", "clip_g": "clip_g"}
_MOST = 75


# Width of a single encoder's vectors -> the models that have it. SDXL has the encoders of both widths of _WIDTHS.
_MODELS = {768: "Stable Diffusion 1.x", 1024: "Stable Diffusion 2.x"}
_WIDTHS = {"clip_l": 768, "clip_g": 1280}


class InversionSurvey(NamedTuple):
    """What the names and shapes in a file of one textual inversion show.

    title:   "a textual inversion for SDXL"
    vectors: how many tokens it stands for
    wrong:   why no model can read it; "" if one can
    """

    title: str
    vectors: int
    wrong: str


def survey_inversion(shapes: Mapping[str, tuple[int, ...]]) -> InversionSurvey | None:
    """Identify a file of one textual inversion by its names and shapes; None for any other file."""
    widths = {name: shape[-1] for name, shape in shapes.items() if len(shape) in (1, 2) and 0 not in shape}
    if not widths or widths.keys() != shapes.keys():
        return None
    counts = {name: shape[0] if len(shape) == 2 else 1 for name, shape in shapes.items()}
    n = max(counts.values())
    if widths.keys() <= _WIDTHS.keys():
        wrong = ""
        if any(width != _WIDTHS[name] for name, width in widths.items()):
            held = " and ".join(f"{name} is {widths[name]} wide" for name in sorted(widths, reverse=True))
            exchanged = len(widths) == 2 and sorted(widths.values()) == sorted(_WIDTHS.values())
            needs = " and ".join(str(_WIDTHS[name]) for name in sorted(widths, reverse=True))
            wrong = f"the two encoders' vectors are exchanged: {held}" if exchanged else f"{held}; {needs} expected"
        elif len(widths) < 2:
            wrong = f"{next(iter(widths))} alone: SDXL needs vectors for both of its encoders"
        elif len(set(counts.values())) > 1:
            wrong = "; ".join(f"{count} vectors for {name}" for name, count in counts.items())
            wrong += ": as many for one encoder as for the other expected"
        return InversionSurvey("a textual inversion for SDXL", n, wrong)
    (name, *more), (width, *_) = widths, widths.values()
    if more or width not in _MODELS or ("." in name and name not in _UNNAMED) or n > _MOST:
        return None
    return InversionSurvey(f"a textual inversion for {_MODELS[width]}", n, "")


class Embedding(NamedTuple):
    """
    name:    as it stands in prompts
    vectors: encoder ("clip", "clip_g") -> [n, E]; n is the same for both
    """

    name: str
    vectors: Mapping[str, np.ndarray]

    @property
    def count(self) -> int:
        return len(next(iter(self.vectors.values())))


def read_embedding(
    file: str, tensors: Mapping[str, np.ndarray], encoders: Mapping[str, int], by_token: bool = False
) -> Embedding:
    """Read a file's vectors.

    file:     its name
    encoders: the model's CLIP encoders -> width of their embeddings
    by_token: True to take the token as the name, where the file has one
    Raises BadInput for a file that holds something else, or vectors for other encoders.
    """
    known = {name: y for name, y in tensors.items() if name in (*_UNNAMED, *_OF_ENCODERS)}
    token = next(iter(tensors)) if len(tensors) == 1 and not known else None
    found: dict[str, np.ndarray] = {}
    for name, y in {**known, **({} if token is None else tensors)}.items():
        rows = y[None] if y.ndim == 1 else y
        fits = [encoder for encoder, width in encoders.items() if rows.ndim == 2 and width == rows.shape[1]]
        encoder = _OF_ENCODERS.get(name, fits[0] if fits else None)
        if encoder in fits:
            found[encoder] = rows
    widths = ", ".join(f"{width} for {encoder}" for encoder, width in encoders.items()) or "no CLIP"
    if not found:
        held = ", ".join(f"{name} {list(y.shape)}" for name, y in list(tensors.items())[:4])
        raise BadInput(f"{file}: no embedding for this model ({widths}): it holds {held or 'nothing'}")
    counts = {encoder: len(rows) for encoder, rows in found.items()}
    if found.keys() != encoders.keys() or len(set(counts.values())) > 1 or not 0 < min(counts.values()) <= _MOST:
        text = ", ".join(f"{n} for {encoder}" for encoder, n in counts.items())
        raise BadInput(
            f"{file}: vectors: {text}; this model's encoders ({widths}) need equally many, 1 to {_MOST} each"
        )
    name = token if by_token and token is not None else Path(file).stem
    return Embedding(name, {encoder: found[encoder] for encoder in encoders})


Names = Sequence[tuple[str, int]]  # name, number of vectors
# Names, the vocabulary's encode, text -> ids, those of vectors from FIRST on
Find = Callable[[Names, Callable[[str], list[int]], str], list[int]]


def ids_of(names: Names, embedding: int) -> list[int]:
    first = FIRST + sum(count for _, count in names[:embedding])
    return list(range(first, first + names[embedding][1]))


def _at_names(names: Names, encode: Callable[[str], list[int]], text: str, pattern: str) -> list[int]:
    """Split a text at the names, and encode what is between."""
    ids: list[int] = []
    own = {name.lower(): i for i, (name, _) in enumerate(names)}
    for piece in re.split(f"({pattern})", text, flags=re.IGNORECASE) if names else [text]:
        at = own.get(piece.lower())
        ids += encode(piece) if at is None else ids_of(names, at)
    return ids


def wherever(names: Names, encode: Callable[[str], list[int]], text: str) -> list[int]:
    """A name is found anywhere, inside a word too; of two that begin alike, the shorter one.

    Source: stable-diffusion.cpp src/tokenizers/tokenize_util.cpp, split_with_special_tokens; names in order.
    """
    return _at_names(names, encode, text, "|".join(re.escape(name) for name in sorted(n.lower() for n, _ in names)))


def longest(names: Names, encode: Callable[[str], list[int]], text: str) -> list[int]:
    """A name is found anywhere; of two that begin alike, the longer one.

    Source: transformers' added tokens; diffusers TextualInversionLoaderMixin.
    """
    sorts = sorted((name for name, _ in names), key=len, reverse=True)
    return _at_names(names, encode, text, "|".join(map(re.escape, sorts)))


def by_tokens(names: Names, encode: Callable[[str], list[int]], text: str) -> list[int]:
    """A name is found where its tokens stand; of two that begin alike, the longer one.

    Source: A1111 modules/textual_inversion/textual_inversion.py, find_embedding_at_position.
    """
    known = sorted(((encode(name), i) for i, (name, _) in enumerate(names)), key=lambda pair: -len(pair[0]))
    tokens, ids, at = encode(text), [], 0
    while at < len(tokens):
        found = next(((own, i) for own, i in known if own and tokens[at : at + len(own)] == own), None)
        ids += [tokens[at]] if found is None else ids_of(names, found[1])
        at += 1 if found is None else len(found[0])
    return ids


def behind_a_prefix(names: Names, encode: Callable[[str], list[int]], text: str) -> list[int]:
    """A name is found as embedding:NAME; commas behind it are text.

    Source: ComfyUI comfy/sd1_clip.py, SDTokenizer.tokenize_with_weights.
    """
    own = {name: i for i, (name, _) in enumerate(names)}
    ids: list[int] = []
    for piece in re.split(r"(\bembedding:\S+)", text):
        name = piece.removeprefix("embedding:")
        bare = name.rstrip(",")
        if name == piece or bare not in own:
            ids += encode(piece) if name == piece else []
        else:
            ids += ids_of(names, own[bare]) + (encode(name[len(bare) :]) if name != bare else [])
    return ids


class WithEmbeddings:
    """A tokenizer whose ids from FIRST on are the vectors of embeddings, in their order."""

    def __init__(self, tokenizer: Tokenizer, embeddings: Sequence[Embedding], find: Find):
        self.source = tokenizer.source
        self._encode, self._find = tokenizer.encode, find
        self._names = [(one.name, one.count) for one in embeddings]

    def encode(self, text: str) -> list[int]:
        return self._find(self._names, self._encode, text)


def rows(embeddings: Sequence[Embedding], encoder: str) -> np.ndarray:
    """The vectors behind an encoder's table. -> [sum of counts, E]"""
    return np.concatenate([one.vectors[encoder] for one in embeddings])
