"""Encode a prompt with a family's tokenizers and text encoders.

The family's text rules decide the template, length, padding and mask; the convention's prompt card decides the
weights in brackets and clip skip. Weights are applied to each chunk's hidden states before the chunks are joined;
SDXL's two encoders are weighted as one. stable-diffusion.cpp weights T5, Qwen3 and Mistral too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from refsd.conventions.pictures import Convention
from refsd.conventions.prompts import PromptCard
from refsd.families.family import Encoded, TextEncoder, Variant
from refsd.numerics.errors import BadInput
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.shown_pictures import ShownPictures, pad_of
from refsd.tokenizers import Tokenizer, find_tokenizer
from refsd.tokenizers.clip_bpe import EOS
from refsd.tokenizers.emphasis import from_the_empty_prompt
from refsd.tokenizers.prompt import Chunk
from refsd.tokenizers.text_rules import MAX_LENGTH, TextRule, first_taken, in_chunks, token_rows
from refsd.tokenizers.text_tokenizer import TextTokenizer
from refsd.tokenizers.textual_inversion import Embedding, Find, WithEmbeddings
from refsd.tokenizers.tokenizer_files import open_tokenizer

CLIP = "clip", "clip_g"


class Tokenizers:
    """Tokenizers of the text encoders, each opened on first use.

    vocab:     CLIP's vocabulary, see find_tokenizer
    tokenizer: file or folder of T5's, Qwen3's or Mistral's tokenizer
    model:     file or folder to search if these are not given
    """

    def __init__(self, vocab: Path | None = None, tokenizer: Path | None = None, model: Path | None = None):
        self.vocab, self.tokenizer, self.model = vocab, tokenizer, model
        self._open: dict[str, Any] = {}

    def clip(self) -> Tokenizer:
        if "clip" not in self._open:
            self._open["clip"] = find_tokenizer(self.vocab, self.model)
        return self._open["clip"]

    def add(self, embeddings: Sequence[Embedding], find: Find) -> None:
        """Have CLIP's tokenizer find the names of embeddings."""
        self._open["clip"] = WithEmbeddings(self.clip(), embeddings, find)

    def of(self, encoder: LoadedComponent) -> TextTokenizer:
        """Return an encoder's tokenizer: as given, from the model's folder, or from the encoder's GGUF file.

        Raises BadInput if there is none.
        """
        if encoder.name not in self._open:
            self._open[encoder.name] = self._opened(encoder)
        return self._open[encoder.name]

    def sources(self, encoders: Iterable[LoadedComponent]) -> list[str]:
        """Return the origins of the encoders' vocabularies."""
        return list(dict.fromkeys((self.clip() if one.name in CLIP else self.of(one)).source for one in encoders))

    def _opened(self, encoder: LoadedComponent) -> TextTokenizer:
        if self.tokenizer is not None:
            others = [name for name in self._open if name not in CLIP]
            if others and not self.tokenizer.is_dir():
                raise BadInput(
                    f"--tokenizer {self.tokenizer}: one file, where {others[0]} and {encoder.name} have different "
                    "tokenizers: give a folder that holds both, as a diffusers folder does"
                )
            return open_tokenizer(self.tokenizer, encoder.name)
        reason = f"{encoder.path} carries none"
        for path in (self.model, encoder.path):
            if path is not None and (path.is_dir() or path.suffix == ".gguf"):
                try:
                    return open_tokenizer(path, encoder.name)
                except BadInput as error:
                    reason = str(error)
        raise BadInput(f"no tokenizer for {encoder.name} ({reason}): give its file or folder with --tokenizer")


def encode(
    variant: Variant,
    convention: Convention,
    encoders: Mapping[str, LoadedComponent],
    tokenizers: Tokenizers,
    prompt: str,
    clip_skip: int | None = None,
    negative: bool = False,
    shown: ShownPictures | None = None,
) -> dict[str, Encoded]:
    """Encode a prompt with all loaded text encoders -> component -> Encoded, with a batch size of 1.

    clip_skip: as the engine counts it; None: the family's
    negative:  True for the negative prompt
    shown:     pictures to edit, for the language model
    """
    clip_skip = clip_skip if convention.prompt.negative or not negative else None
    clips = {name: encoder for name, encoder in encoders.items() if name in CLIP}
    encoded = _clips(variant, convention, clips, tokenizers, prompt, clip_skip) if clips else {}
    for name, encoder in encoders.items():
        if name not in CLIP:
            own = variant.encoders[name]
            rule = shown.rule if shown is not None else convention.row(_rules(own, negative))
            tokenizer = tokenizers.of(encoder)
            read = encoded.get(own.reads)
            encoded[name] = _language(encoder, tokenizer, rule, convention, own, prompt, shown, read)
    return encoded


def _rules(encoder: TextEncoder, negative: bool) -> Mapping[str, TextRule]:
    return encoder.negative_rules if negative and encoder.negative_rules is not None else encoder.rules


def _clips(
    variant: Variant, convention: Convention, encoders, tokenizers: Tokenizers, prompt: str, clip_skip: int | None
) -> dict[str, Encoded]:
    card = convention.prompt
    chunks: list[Chunk] = card.chunk(tokenizers.clip(), card.parse(prompt))
    rules = {name: convention.row(variant.encoders[name].rules) for name in encoders}
    if not all(rule.over is in_chunks for rule in rules.values()):
        chunks = chunks[:1]
    layer = card.layer(clip_skip, variant.clip_layer)
    encoded = {}
    from_empty = card.weigh is from_the_empty_prompt and any((chunk.weights != 1).any() for chunk in chunks)
    together = variant.weighted_together and convention.weighs_together
    for names in [[*encoders]] if together else [[name] for name in encoders]:
        outputs, own_card = {}, card
        for name in names:
            own = _own_layer(variant.encoders[name], encoders[name], layer)
            params = {"clip_skip": own, "final_norm": variant.final_norm}
            ids = [_padded(chunk.ids, rules[name]) for chunk in chunks]
            outputs[name] = [encoders[name]({"input_ids": row[None]}, "prompt", **params) for row in ids]
            if from_empty:
                row = _padded(card.chunk(tokenizers.clip(), [("", 1.0)])[0].ids, rules[name])
                empty = encoders[name]({"input_ids": row[None]}, "prompt", **params)["last_hidden_state"]
                own_card = card._replace(weigh=partial(from_the_empty_prompt, empty=empty))
        weighted = []
        for i, chunk in enumerate(chunks):
            hidden = [outputs[name][i]["last_hidden_state"] for name in names]
            weighted.append(_weighted(hidden, chunk.weights, own_card, encoders[names[0]]))
        for j, name in enumerate(names):
            hidden = np.concatenate([chunk[j] for chunk in weighted], axis=1)
            pooled = outputs[name][0]["pooled"]
            projected = variant.encoders[name].projected and convention.projects_clip_l
            if projected and "text_projection" in encoders[name].module:
                pooled = encoders[name].module.linear("text_projection", pooled)
            encoded[name] = Encoded(hidden, pooled, np.ones(hidden.shape[:2], np.int64))
    return encoded


def _own_layer(of: TextEncoder, encoder: LoadedComponent, layer: int) -> int:
    """Adjust the layer, counted from the last, for an encoder without OpenCLIP's 24th layer (diffusers' SD 2)."""
    lacks = encoder.in_diffusers_folder or encoder.module.count("text_model.encoder.layers") == 23
    return max(1, layer - 1) if of.short_in_folders and lacks else layer


def _padded(ids: np.ndarray, rule: TextRule) -> np.ndarray:
    """Replace every EOS after the first one in a chunk with the rule's padding."""
    if rule.pad is None:
        return ids
    padding = np.arange(len(ids)) > int(np.argmax(ids == EOS))
    return np.where(padding, rule.pad, ids)


def _language(
    encoder: LoadedComponent,
    tokenizer: TextTokenizer,
    rule: TextRule,
    convention: Convention,
    own: TextEncoder,
    prompt: str,
    shown: ShownPictures | None = None,
    read: Encoded | None = None,
) -> Encoded:
    """Encode a prompt with T5, a language model, or what reads another encoder's output; BREAKs are dropped."""
    text, card = rule.text(prompt), convention.prompt
    parts = [(text, 1.0)] if rule.plain else [pair for pair in card.parse(text) if pair]
    before, after = rule.around
    joins = card.joins or rule.plain
    ids, weights = _weighted_ids(tokenizer.encode, [(before, 1.0), *parts, (after, 1.0)], joins)
    source = f"{tokenizer.source}, {encoder.name}"
    rows, mask = token_rows(lambda _: ids, tokenizer.ends, [""], rule, source)
    all_weights = np.ones(rows.shape, np.float32)
    room = (rule.length or MAX_LENGTH) - rule.bos - rule.eos - rule.kept
    words = rule.over(weights[: len(weights) - rule.kept], room)  # type: ignore[arg-type]
    for row, mine, seen in zip(all_weights, words, mask, strict=True):
        start = int(np.argmax(seen)) + rule.bos
        row[start : start + len(mine)] = mine
    card = card if own.weigh is None or card.weigh is None else card._replace(weigh=own.weigh)

    def state(row: np.ndarray, seen: np.ndarray) -> np.ndarray:
        inputs = {"input_ids": row[None]} | ({"attention_mask": seen[None]} if rule.mask else {})
        inputs |= {"positions": rule.positions(seen[None])} if rule.positions else {}
        inputs |= {"context": read.hidden, "context_mask": read.mask} if read is not None else {}
        params: dict[str, Any] = {**convention.row(own.params)}
        params |= {"layers": [*own.layers]} if own.layers else {}
        params |= {} if rule.final_norm else {"final_norm": False}
        if shown is not None:
            params["image_token"] = pad_of(tokenizer)
            inputs |= shown.inputs(row[None], seen[None], params["image_token"])
        outputs = encoder(inputs, "prompt", also=True, **params)
        if own.output not in outputs:
            raise BadInput(f"{encoder.path}: {encoder.name} has too few layers for this family")
        return outputs[own.output]

    if card.weigh is from_the_empty_prompt and (all_weights != 1).any():
        alone = rule._replace(length=rows.shape[1], fill=True, eos=rule.eos and rule.empty_ends)
        (nothing,), (seen,) = token_rows(lambda _: [], tokenizer.ends, [""], alone, source)
        card = card._replace(weigh=partial(from_the_empty_prompt, empty=state(nothing, seen)))
    answers = [
        _weighted([state(row, seen)], weight, card, encoder)[0]
        for row, seen, weight in zip(rows, mask, all_weights, strict=True)
    ]
    start, places = int(first_taken(mask, rule)[0]), ()
    if shown is not None:
        places = tuple(place - start for place in shown.places(rows, pad_of(tokenizer)))
    states, seen = np.concatenate(answers, axis=1)[:, start:], mask.reshape(1, -1)[:, start:]
    if rule.drop and not seen.any():
        raise BadInput(f"{source}: the prompt's {mask.sum()} tokens are all of the template, which is dropped")
    return Encoded(states, None, seen, places)


def _weighted_ids(encode: Callable[[str], list[int]], parts: list, joins: bool) -> tuple[list[int], list[float]]:
    """Return tokens and their weights. joins: True if adjacent parts of equal weight are encoded as one text"""
    joined: list[tuple[str, float]] = []
    for text, weight in parts:
        if joins and joined and joined[-1][1] == weight:
            joined[-1] = (joined[-1][0] + text, weight)
        elif text:
            joined.append((text, weight))
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in joined:
        new = encode(text)
        ids += new
        weights += [weight] * len(new)
    return ids, weights


def _weighted(
    hidden: list[np.ndarray], weights: np.ndarray, card: PromptCard, encoder: LoadedComponent
) -> list[np.ndarray]:
    """Apply a prompt's weights to one chunk's hidden states, [1, J, E] each, of several encoders as one array."""
    if card.weigh is None or (weights == 1).all():
        return hidden
    both = np.concatenate(hidden, axis=2)
    wide = card.weigh(both.astype(encoder.dtype), weights).astype(both.dtype)
    return np.split(wide, np.cumsum([h.shape[2] for h in hidden])[:-1], axis=2)
