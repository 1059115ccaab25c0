"""Textual inversion: the tokens of a prompt that learned embeddings replace, and the vectors in their place."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from refsd.conventions import PROMPT_CARDS
from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.stages.clip_tokens import _lacks, _vocabulary
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, magnitude, param, part
from refsd.tokenizers.clip_bpe import EOS
from refsd.tokenizers.textual_inversion import (
    FIRST,
    Embedding,
    Find,
    Names,
    by_tokens,
    ids_of,
    longest,
    read_embedding,
    rows,
    wherever,
)

Encode = Callable[[str], list[int]]
Files = Mapping[str, Mapping[str, np.ndarray]]


def _read(file: str, tensors: Mapping[str, np.ndarray], encoders: Mapping[str, int], engine: str) -> Embedding:
    return read_embedding(file, tensors, encoders, by_token=engine == "diffusers")


class InversionRule(NamedTuple):
    """The parts of the rule.

    read:   file, its tensors, encoders' widths, engine -> embedding
    find:   engine -> rule that finds names in a prompt
    place:  ids of a chunk -> ids from which the vectors are looked up
    weight: weights of a chunk, its ids -> weights
    """

    read: Callable[[str, Mapping[str, np.ndarray], Mapping[str, int], str], Embedding] = _read
    find: Callable[[str], Find] = lambda engine: PROMPT_CARDS[engine].find
    place: Callable[[np.ndarray], np.ndarray] = lambda ids: ids
    weight: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda weights, ids: weights


def _files(tensors: Mapping[str, np.ndarray]) -> Files:
    """Group tensors named FILE:TENSOR by file. -> {file: {tensor: values}}"""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, y in tensors.items():
        file, colon, inner = name.partition(":")
        if not colon:
            raise BadInput(f"stage/textual_inversion: {name}: expected FILE:TENSOR")
        found.setdefault(file, {})[inner] = y
    return found


class _Found:
    """A vocabulary whose `encode` finds the embeddings' names by a rule."""

    def __init__(self, names: Names, find: Find):
        vocabulary = _vocabulary()
        self.source = vocabulary.source
        self._names, self._find, self._plain = names, find, vocabulary.encode

    def encode(self, text: str) -> list[int]:
        return self._find(self._names, self._plain, text)


def _run(rule: InversionRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    engine, widths = p["engine"], p["encoders"]
    embeddings = [rule.read(file, tensors, widths, engine) for file, tensors in _files(inputs.tensors).items()]
    names = [(one.name, one.count) for one in embeddings]
    card = PROMPT_CARDS[engine]
    chunks = card.chunk(_Found(names, rule.find(engine)), card.parse(p["prompt"]))
    found = {
        "ids": np.stack([np.where(one.ids >= FIRST, -1, one.ids) for one in chunks]),
        "weights": np.stack([rule.weight(one.weights, one.ids) for one in chunks]),
    }
    for encoder, width in widths.items():
        learned = rows(embeddings, encoder)
        table = np.concatenate([np.zeros((1, width), inputs.dtype), learned])
        places = [np.maximum(rule.place(one.ids) - FIRST + 1, 0) for one in chunks]
        if max(at.max() for at in places) >= len(table):
            raise NoDifference
        found[encoder] = np.stack([table[at] for at in places])
    return found


# --- what engines got wrong --------------------------------------------------------------------------------------


def _other_vectors(change: Callable[[np.ndarray], np.ndarray]):
    """change: an encoder's vectors [n, E] -> vectors"""

    def read(file, tensors, encoders, engine) -> Embedding:
        right = _read(file, tensors, encoders, engine)
        return right._replace(vectors={name: change(y) for name, y in right.vectors.items()})

    return read


def _shifted(by: int) -> Callable[[np.ndarray], np.ndarray]:
    """Put the vectors `by` positions after their tokens."""

    def place(ids: np.ndarray) -> np.ndarray:
        moved = np.roll(ids, by)
        return np.where(moved >= FIRST, moved, np.minimum(ids, EOS))

    return place


def _skips(count: Callable[[list[int], int], int]):
    """Find names by tokens, as A1111 does, but skip another number of the prompt's tokens at a name.

    count: the name's tokens, its number of vectors -> tokens to skip; 0 keeps the name's own tokens
    """

    def find(names: Names, encode: Encode, text: str) -> list[int]:
        known = sorted(((encode(name), i) for i, (name, _) in enumerate(names)), key=lambda pair: -len(pair[0]))
        tokens, ids, at = encode(text), [], 0
        while at < len(tokens):
            own = next(((n, i) for n, i in known if n and tokens[at : at + len(n)] == n), None)
            ids += [tokens[at]] if own is None else ids_of(names, own[1])
            at += 1 if own is None else max(count(own[0], names[own[1]][1]), 0)
            if own is not None and count(own[0], names[own[1]][1]) == 0:
                ids += own[0]
                at += len(own[0])
        return ids

    return lambda engine: find


def _at_names(put: Callable[[Names, int, Encode], list[int]]) -> Find:
    """put: names, index of the name found, encode -> ids"""

    def find(names: Names, encode: Encode, text: str) -> list[int]:
        ids: list[int] = []
        for piece in re.split("(" + "|".join(re.escape(n) for n, _ in names) + ")", text):
            own = next((i for i, (name, _) in enumerate(names) if name == piece), None)
            ids += encode(piece) if own is None else put(names, own, encode)
        return ids

    return find


def _later_as_text(names: Names, own: int, encode: Encode) -> list[int]:
    name, count = names[own]
    return ids_of(names, own)[:1] + [t for j in range(1, count) for t in encode(f"{name}_{j}")]


def _run_together(names: Names, own: int, encode: Encode) -> list[int]:
    """Encode NAMENAME_1NAME_2 as one word."""
    name, count = names[own]
    if count == 1:
        return ids_of(names, own)
    return encode(name + "".join(f"{name}_{j}" for j in range(1, count)))


def _between_blanks(names: Names, encode: Encode, text: str) -> list[int]:
    ids: list[int] = []
    for word in re.split(r"(\s+)", text):
        own = next((i for i, (name, _) in enumerate(names) if name.lower() == word.lower()), None)
        ids += encode(word) if own is None else ids_of(names, own)
    return ids


def _as_written(right: Find) -> Find:
    """Find a name only if upper and lower case match the file's."""

    def find(names: Names, encode: Encode, text: str) -> list[int]:
        return right([(name if name in text else "\0" + name, n) for name, n in names], encode, text)

    return find


def _twice(names: Names, encode: Encode, text: str) -> list[int]:
    """Repeat each vector's token, once for each of two encoders."""
    return [i for i in wherever(names, encode, text) for _ in range(2 if i >= FIRST else 1)]


def _one_token(right: Find) -> Find:
    def find(names: Names, encode: Encode, text: str) -> list[int]:
        firsts = {ids_of(names, i)[0] for i in range(len(names))}
        return [i for i in right(names, encode, text) if i < FIRST or i in firsts]

    return find


def _without_prefix(names: Names, encode: Encode, text: str) -> list[int]:
    return longest(names, encode, text.replace("embedding:", ""))


def _of(change: Callable[[Find], Find]):
    return lambda engine: change(PROMPT_CARDS[engine].find)


def _unweighted(weights: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.where(ids >= FIRST, np.float32(1), weights)


_KNOWN = (
    part("names are text", find=lambda engine: lambda names, encode, text: encode(text)),
    part("the name's tokens stay behind its vectors", find=_skips(lambda own, n: 0)),
    part("as many tokens are skipped as there are vectors", find=_skips(lambda own, n: n)),
    part("one token is skipped", find=_skips(lambda own, n: 1)),
    part("names are found only between blanks", find=lambda engine: _between_blanks),
    part("names are found only as they are written", find=_of(_as_written)),
    part("names are found wherever they stand, the shorter first", find=lambda engine: wherever),
    part("names are found wherever they stand, the longer first", find=lambda engine: longest),
    part("names are found by their tokens", find=lambda engine: by_tokens),
    part("names are found without their prefix", find=lambda engine: _without_prefix),
    part("later vectors are looked for as text", find=lambda engine: _at_names(_later_as_text)),
    part("names of several vectors run together, and are text", find=lambda engine: _at_names(_run_together)),
    part("vectors of both encoders one after the other", find=lambda engine: _twice),
    part("one token for all vectors", find=_of(_one_token)),
    part("only the first vector, repeated", read=_other_vectors(lambda y: np.repeat(y[:1], len(y), axis=0))),
    part("the vectors' mean", read=_other_vectors(lambda y: np.repeat(y.mean(0, keepdims=True), len(y), axis=0))),
    part("vectors in reverse order", read=_other_vectors(lambda y: y[::-1])),
    part("vectors left out: zeros", read=_other_vectors(np.zeros_like)),
    part("vectors of length 1", read=_other_vectors(lambda y: y / np.linalg.norm(y, axis=1, keepdims=True))),
    part("vectors a token early", place=_shifted(-1)),
    part("vectors a token late", place=_shifted(1)),
    part("a name's weight left out", weight=_unweighted),
    param("names of another engine", engine=lambda engine: "comfyui" if engine != "comfyui" else "sdcpp"),
)


def _case(
    label: str, engine: str, prompt: str, files: Mapping[str, Mapping[str, tuple[int, ...]]], **encoders: int
):
    inputs = {
        f"{file}:{name}": Recipe(shape, exponent=-17) for file, own in files.items() for name, shape in own.items()
    }
    return case("textual_inversion", label, inputs, engine=engine, prompt=prompt, encoders=encoders or {"clip": 8})


_ONE = {"style.pt": {"string_to_param.*": (3, 8)}}
_TWO = {**_ONE, "style-2.safetensors": {"emb_params": (2, 8)}}
_XL = {"bad hands.safetensors": {"clip_l": (3, 8), "clip_g": (3, 12)}}
_TOKEN = {"learned.bin": {"<cat-toy>": (8,)}, "more.bin": {"zorb": (2, 8)}}

STAGES = (
    Stage(
        "textual_inversion",
        "A prompt with learned embeddings: ids with -1 where a vector stands, weights, and the vectors themselves.",
        inputs={"*": "FILE:TENSOR: the tensors of each file, [n, E] or [E], by the trainer's names"},
        # encoders: CLIP encoders of the model, and the width of their embeddings
        params={"engine": REQUIRED, "prompt": REQUIRED, "encoders": REQUIRED},
        outputs={
            "ids": Output(("chunk", "token")),
            "weights": Output(("chunk", "token"), magnitude, 8),
            "clip": Output(("chunk", "token", "number"), magnitude, 2),
            "clip_g": Output(("chunk", "token", "number"), magnitude, 2),
        },
        rule=InversionRule(),
        choices={"engine": PROMPT_CARDS},
        run=_run,
        known=_KNOWN,
        lacks=_lacks,
        cases=(
            _case("sdcpp", "sdcpp", "style, a cat (in Style:1.3) on a mat", _ONE),
            _case("sdcpp-two", "sdcpp", "a style-2 of a lifestyle, style", _TWO),
            _case("sdcpp-sdxl", "sdcpp", "a hand, bad hands, (bad hands:0.7)", _XL, clip=8, clip_g=12),
            _case("a1111", "a1111", "style-2 a cat, (style:1.2), lifestyle [style-2]", _TWO),
            _case("a1111-sdxl", "a1111", "bad hands and a mat", _XL, clip=8, clip_g=12),
            _case("diffusers", "diffusers", "a <cat-toy> beside a zorb of glass", _TOKEN),
            _case("comfyui", "comfyui", "a (embedding:style:1.4) cat, embedding:style-2, style", _TWO),
        ),
    ),
)
