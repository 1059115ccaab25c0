"""A prompt through a family's tokenizers and text encoders.

Whose convention is what: the words around a prompt, lengths, padding and masks are text_rules.py's; weights in
brackets and the layer of CLIP are cards.py's, both engine by engine. What an encoder says of one chunk is weighed
before the chunks are joined; stable-diffusion.cpp weighs SDXL's two encoders as one, T5, Qwen3 and Mistral too.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.errors import BadInput
from refsd.pipelines.families import Drawing
from refsd.pipelines.joining import Said
from refsd.pipelines.part import Part
from refsd.tokenizers import Tokenizer, find_tokenizer
from refsd.tokenizers.cards import PROMPT_CARDS, PromptCard
from refsd.tokenizers.clip_bpe import EOS
from refsd.tokenizers.prompt import Chunk
from refsd.tokenizers.text_rules import MAX_LENGTH, TEXT_RULES, TextRule, in_chunks, token_rows
from refsd.tokenizers.text_tokenizer import TextTokenizer
from refsd.tokenizers.tokenizer_files import open_tokenizer

CLIP = "clip", "clip_g"
ONE_TOGETHER = "sdxl"  # whose encoders are weighed as one
# What a language model is asked for, family by family.
HIDDEN = {"zimage": "penultimate", "flux2-klein": "context", "flux2-dev": "context"}


class Tokenizers:
    """Each found when it is first asked for.

    vocab:     CLIP's, see find_tokenizer
    tokenizer: T5's, Qwen3's or Mistral's: a file or a folder
    model:     the model, where both are looked for next
    """

    def __init__(self, vocab: Path | None = None, tokenizer: Path | None = None, model: Path | None = None):
        self.vocab, self.tokenizer, self.model = vocab, tokenizer, model
        self._found: dict[str, Any] = {}

    def clip(self) -> Tokenizer:
        if "clip" not in self._found:
            self._found["clip"] = find_tokenizer(self.vocab, self.model)
        return self._found["clip"]

    def of(self, part: Part) -> TextTokenizer:
        """Raises BadInput: neither given, nor in the model's folder, nor in the encoder's own GGUF."""
        if part.name not in self._found:
            self._found[part.name] = self._open(part)
        return self._found[part.name]

    def find(self, encoders: Iterable[Part]) -> list[str]:
        """Where the vocabularies of these come from."""
        return list(dict.fromkeys((self.clip() if one.name in CLIP else self.of(one)).source for one in encoders))

    def _open(self, part: Part) -> TextTokenizer:
        if self.tokenizer is not None:
            return open_tokenizer(self.tokenizer, part.name)
        reason = f"{part.path} carries none"
        for place in (self.model, part.path):
            if place is not None and (place.is_dir() or place.suffix == ".gguf"):
                try:
                    return open_tokenizer(place, part.name)
                except BadInput as error:
                    reason = str(error)
        raise BadInput(f"no tokenizer for {part.name} ({reason}): give its file or folder with --tokenizer")


class Spoken(NamedTuple):
    """What one encoder says: hidden [1, J, E], pooled [1, P] of the first chunk, mask [1, J]."""

    hidden: np.ndarray
    pooled: np.ndarray | None
    mask: np.ndarray


def say(
    drawing: Drawing,
    like: str,
    encoders: Mapping[str, Part],
    tokenizers: Tokenizers,
    prompt: str,
    clip_skip: int | None = None,
) -> Mapping[str, Spoken]:
    """Encoder by encoder; one that is not there says nothing.

    clip_skip: as the user of that engine says it; None: the family's
    """
    card = PROMPT_CARDS[like]
    clips = {name: part for name, part in encoders.items() if name in CLIP}
    spoken = _clips(drawing, like, card, clips, tokenizers, prompt, clip_skip) if clips else {}
    for name in encoders:
        if name not in CLIP:
            rule = TEXT_RULES[drawing.text, name, like]
            hidden = HIDDEN.get(drawing.text, "last_hidden_state")
            spoken[name] = _language(encoders[name], tokenizers.of(encoders[name]), rule, card, hidden, prompt)
    return spoken


def _clips(drawing, like, card, encoders, tokenizers, prompt, clip_skip) -> dict[str, Spoken]:
    chunks: list[Chunk] = card.chunk(tokenizers.clip(), card.parse(prompt))
    rules = {name: TEXT_RULES[drawing.text, name, like] for name in encoders}
    if not all(rule.over is in_chunks for rule in rules.values()):
        chunks = chunks[:1]
    layer = card.layer(clip_skip, "sdxl" if drawing.layer == 2 else "sd1")
    spoken = {}
    for names in [[*encoders]] if drawing.text == ONE_TOGETHER else [[name] for name in encoders]:
        said = {}
        for name in names:
            params = {"clip_skip": _own_layer(drawing, encoders[name], layer), "final_norm": drawing.normed}
            ids = [_padded(chunk.ids, rules[name]) for chunk in chunks]
            said[name] = [encoders[name]({"input_ids": row[None]}, "prompt", **params) for row in ids]
        weighed = []
        for i, chunk in enumerate(chunks):
            hidden = [said[name][i]["last_hidden_state"] for name in names]
            weighed.append(_weighed(hidden, chunk.weights, card, encoders[names[0]]))
        for j, name in enumerate(names):
            hidden = np.concatenate([chunk[j] for chunk in weighed], axis=1)
            pooled = said[name][0]["pooled"]
            if like in drawing.projected and name == "clip" and "text_projection" in encoders[name].module:
                pooled = encoders[name].module.linear("text_projection", pooled)
            spoken[name] = Spoken(hidden, pooled, np.ones(hidden.shape[:2], np.int64))
    return spoken


def _own_layer(drawing: Drawing, part: Part, layer: int) -> int:
    """Diffusers' folders of SD 2 lack the last of OpenCLIP's 24 layers, which nothing reads."""
    lacks = part.in_a_folder or part.module.count("text_model.encoder.layers") == 23
    return max(1, layer - 1) if drawing.text == "sd2" and lacks else layer


def _padded(ids: np.ndarray, rule: TextRule) -> np.ndarray:
    """The rule's padding behind the first EOS, where a chunk has EOS to the end."""
    if rule.pad is None:
        return ids
    behind = np.arange(len(ids)) > int(np.argmax(ids == EOS))
    return np.where(behind, rule.pad, ids)


def _language(
    part: Part, tokenizer: TextTokenizer, rule: TextRule, card: PromptCard, hidden: str, prompt: str
) -> Spoken:
    """T5, Qwen3 or Mistral. A BREAK means nothing to them."""
    parts = [pair for pair in card.parse(prompt.replace(rule.without, "") if rule.without else prompt) if pair]
    before, after = rule.around
    ids, weights = _weighted_ids(tokenizer.encode, [(before, 1.0), *parts, (after, 1.0)])
    source = f"{tokenizer.source}, {part.name}"
    rows, mask = token_rows(lambda _: ids, tokenizer.ends, [""], rule, source)
    weighed = np.ones(rows.shape, np.float32)
    room = (rule.length or MAX_LENGTH) - rule.bos - rule.eos
    for row, mine, seen in zip(weighed, rule.over(weights, room), mask, strict=True):  # type: ignore[arg-type]
        start = int(np.argmax(seen)) + rule.bos
        row[start : start + len(mine)] = mine
    answers = []
    for row, seen, weight in zip(rows, mask, weighed, strict=True):
        inputs = {"input_ids": row[None]} | ({"attention_mask": seen[None]} if rule.mask else {})
        said = part(inputs, "prompt", also=True)
        if hidden not in said:
            raise BadInput(f"{part.path}: {part.name} has too few layers for this family")
        answers.append(_weighed([said[hidden]], weight, card, part)[0])
    return Spoken(np.concatenate(answers, axis=1), None, mask.reshape(1, -1))


def _weighted_ids(encode: Callable[[str], list[int]], parts: list) -> tuple[list[int], list[float]]:
    """Neighbours of one weight are encoded as one text."""
    joined: list[tuple[str, float]] = []
    for text, weight in parts:
        if joined and joined[-1][1] == weight:
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


def _weighed(hidden: list[np.ndarray], weights: np.ndarray, card: PromptCard, part: Part) -> list[np.ndarray]:
    """The hidden states of one chunk, of several encoders side by side, weighed together. [1, J, E] each"""
    if card.weigh is None or (weights == 1).all():
        return hidden
    both = np.concatenate(hidden, axis=2)
    wide = card.weigh(both.astype(part.dtype), weights).astype(both.dtype)
    return np.split(wide, np.cumsum([h.shape[2] for h in hidden])[:-1], axis=2)


def said(spoken: Mapping[str, Spoken], **context: Any) -> Said:
    """What `joining` takes."""
    return Said(
        {name: one.hidden for name, one in spoken.items()},
        {name: one.pooled for name, one in spoken.items() if one.pooled is not None},
        {name: one.mask for name, one in spoken.items()},
        **context,
    )
