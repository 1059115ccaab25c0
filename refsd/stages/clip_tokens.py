"""Tokenize a prompt for CLIP: ids and weights, in chunks of 77."""

import functools
import importlib.util
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from refsd.conventions import PROMPT_CARDS
from refsd.conventions.prompts import literally
from refsd.families import FAMILIES
from refsd.numerics.errors import BadInput
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, case, magnitude, part
from refsd.tokenizers import Tokenizer, find_tokenizer
from refsd.tokenizers.chunking import FAR, LONG, Parts, at_commas, by_parts, cut_off
from refsd.tokenizers.clip_bpe import BOS, END, EOS, START, byte_characters
from refsd.tokenizers.comfyui_prompt import parse_weights
from refsd.tokenizers.prompt import LENGTH, ROOM, Chunk, chunk, cut, parse_attention
from refsd.tokenizers.sdcpp_prompt import parse_attention_sdcpp
from refsd.tokenizers.text_rules import TextRule, in_chunks
from refsd.tokenizers.vocabulary import Vocabulary

Encode = Callable[[str], list[int]]


class _Vocabulary:
    """A vocabulary with another `encode`."""

    def __init__(self, encode: Encode, source: str):
        self.source = source
        self._encode = encode

    def encode(self, text: str) -> list[int]:
        return self._encode(text)


@functools.cache
def _vocabulary() -> Vocabulary:
    return find_tokenizer()


def _keep(rule: TextRule, chunks: list[Chunk]) -> list[Chunk]:
    return chunks if rule.over is in_chunks else chunks[:1]


def _pad(ids: np.ndarray, rule: TextRule) -> np.ndarray:
    """Replace all ids after the first EOS by the family's padding."""
    behind = np.arange(len(ids)) > int(np.argmax(ids == EOS))
    return ids if rule.pad is None else np.where(behind, rule.pad, ids)


class ClipRule(NamedTuple):
    """The parts of the rule. In the right rule clean, encode, ends and weigh return their argument.

    clean:  prompt -> prompt, before anything else
    parse:  engine -> (prompt -> parts with weights)
    encode: the vocabulary's encode -> (text -> ids)
    chunk:  engine -> (vocabulary, parts -> chunks of 77)
    keep:   the family's text rule, chunks -> chunks that are used
    ends:   a chunk's 77 ids -> ids; bugs change BOS and EOS
    pad:    ids, the family's text rule -> ids with the family's padding
    weigh:  weights of a chunk's 77 tokens -> weights
    """

    clean: Callable[[str], str] = lambda prompt: prompt
    parse: Callable[[str], Callable[[str], Parts]] = lambda engine: PROMPT_CARDS[engine].parse
    encode: Callable[[Encode], Encode] = lambda encode: encode
    chunk: Callable[[str], Callable[[Tokenizer, Parts], list[Chunk]]] = lambda engine: PROMPT_CARDS[engine].chunk
    keep: Callable[[TextRule, list[Chunk]], list[Chunk]] = _keep
    ends: Callable[[np.ndarray], np.ndarray] = lambda ids: ids
    pad: Callable[[np.ndarray, TextRule], np.ndarray] = _pad
    weigh: Callable[[np.ndarray], np.ndarray] = lambda weights: weights


RULE = ClipRule()


def text_rule(params: Params) -> TextRule:
    """Return the text rule of a family's encoder in an engine; engines without one use stable-diffusion.cpp's.

    Raises BadInput for an unknown engine.
    """
    if params["engine"] not in PROMPT_CARDS:
        raise BadInput(f"engine {params['engine']!r}: expected one of {', '.join(PROMPT_CARDS)}")
    rules = FAMILIES[params["family"]].encoders[params["encoder"]].rules
    return rules.get(params["engine"], rules["sdcpp"])


def spelled(id: int) -> str | None:
    """Spell an id of a single byte, with "</w>" if it ends a word; None for other ids."""
    if not 0 <= id < 512:
        return None
    character = byte_characters()[id % 256]
    # The characters behind the printable ones stand for the other bytes, rising.
    others = [b for b in range(256) if chr(b) not in byte_characters()]
    byte = character if ord(character) < 256 else chr(others[ord(character) - 256])
    return byte + "</w>" * (id >= 256)


def _run(rule: ClipRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    params = inputs.params
    family, engine = text_rule(params), params["engine"]
    found = _vocabulary()
    parts = rule.parse(engine)(rule.clean(params["prompt"]))
    chunks = rule.chunk(engine)(_Vocabulary(rule.encode(found.encode), found.source), parts)
    chunks = rule.keep(family, chunks)
    return {
        "ids": np.stack([rule.pad(rule.ends(one.ids), family) for one in chunks]),
        "weights": np.stack([rule.weigh(one.weights) for one in chunks]),
    }


def _lacks(params: Params) -> str | None:
    known = any(importlib.util.find_spec(name) for name in ("instant_clip_tokenizer", "open_clip"))
    return None if known else "CLIP's vocabulary is not installed: pip install open_clip_torch"


# --- what engines got wrong --------------------------------------------------------------------------------------

# clip_bpe.WORDS in Python's syntax.
_WORD = re.compile(rf"{re.escape(START)}|{re.escape(END)}|'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+")
_BYTES = {c: i for i, c in enumerate(byte_characters())}


def _not_lowered(encode: Encode) -> Encode:
    """Keep capitals: each is a token of its own, as no merge contains one, and starts a new piece."""

    def ids(text: str) -> list[int]:
        found: list[int] = []
        for word in _WORD.findall(text):
            for piece in re.findall("[A-Z]|[^A-Z]+", word) if word not in (START, END) else [word]:
                ends = word.endswith(piece)
                found += [_BYTES[piece] + 256 * ends] if piece in _BYTES and piece.isupper() else encode(piece)
        return found

    return ids


def _plain_specials(encode: Encode) -> Encode:
    return lambda text: encode(re.sub(r"(<\|)(startoftext|endoftext)(\|>)", r"\1 \2 \3", text))


def _cut_at_non_ascii(encode: Encode) -> Encode:
    return lambda text: encode(re.sub(r"([^\x00-\x7f])", r" \1 ", text))


def _ends_of_each_part(encode: Encode) -> Encode:
    return lambda text: [BOS, *encode(text), EOS]


def _in_place_of(parse: Callable[[str], Parts]) -> Callable[[str], Callable[[str], Parts]]:
    """Replace the parser; drop BREAK for ComfyUI, whose chunks do not support it."""
    return lambda engine: (lambda prompt: [p for p in parse(prompt) if p]) if engine == "comfyui" else parse


def _literal_break(prompt: str) -> Parts:
    return [part if part else ("BREAK", 1.0) for part in parse_attention(prompt)]


def _without_brackets(prompt: str) -> Parts:
    """A number behind a colon is a weight wherever it stands: "cat:1.3," for "(cat:1.3),"."""
    return parse_attention(re.sub(r"([^,:()\[\]]+):([\d.]+)(?=,|$)", r"(\1:\2)", prompt))


def _sums(prompt: str) -> Parts:
    """Each bracket adds 0.1 to the weight, instead of multiplying it by 1.1."""
    return [
        part and (part[0], 1 + (round(np.log(part[1]) / np.log(1.1), 6) * 0.1)) for part in parse_attention(prompt)
    ]


def _innermost(prompt: str) -> Parts:
    """A weight in brackets replaces those of the brackets around it."""
    own = {text: float(weight) for text, weight in re.findall(r"\(([^():\[\]]+):\s*(\d*\.?\d+)\s*\)", prompt)}
    return [part and (part[0], own.get(part[0], part[1])) for part in parse_attention(prompt)]


def _half(prompt: str) -> Parts:
    return [part and (part[0], 1 + (part[1] - 1) / 2) for part in parse_attention(prompt)]


def _of_engine(text: Callable[[str], str] = str, weight: Callable[[float], float] = float):
    """Parse as the engine does. text: prompt -> prompt; weight: weight -> weight"""

    def parse(engine: str) -> Callable[[str], Parts]:
        own = PROMPT_CARDS[engine].parse
        return lambda prompt: [part and (part[0], weight(part[1])) for part in own(text(prompt))]

    return parse


def _unweighted(prompt: str) -> Parts:
    return [part and (part[0], 1.0) for part in parse_attention(prompt)]


def _only_first(engine: str) -> Callable[[str], Parts]:
    def parse(prompt: str) -> Parts:
        parts = list(PROMPT_CARDS[engine].parse(prompt))
        first = next((i for i, part in enumerate(parts) if part and part[1] != 1), len(parts))
        return [part and (part[0], part[1] if i <= first else 1.0) for i, part in enumerate(parts)]

    return parse


def _one_more(tokenizer: Tokenizer, parts: Parts) -> list[Chunk]:
    """Put 76 tokens into a chunk, the last in place of EOS."""
    pairs = [(i, p[1]) for p in parts if p for i in tokenizer.encode(p[0])]
    if len(pairs) <= ROOM:
        raise NoDifference
    made = chunk([i for i, _ in pairs[:ROOM]], [w for _, w in pairs[:ROOM]])
    made.ids[-1] = pairs[ROOM][0]
    return [made, *cut(tokenizer, parts)[1:]]


def _bounded(rule: Callable[..., list[Chunk]], **bound: int):
    """Cut by an engine's own rule with another bound."""

    def chunk_of(engine: str):
        if PROMPT_CARDS[engine].chunk is not rule:
            raise NoDifference
        return partial(rule, **bound)

    return chunk_of


def _without_eos(ids: np.ndarray) -> np.ndarray:
    first = int(np.argmax(ids == EOS))
    return np.append(np.delete(ids, first), EOS if ids[-1] == EOS and first < LENGTH - 1 else 0)


_KNOWN = (
    part("a substring of the prompt replaced", clean=lambda p: p.replace("\u306e", "\u306f").replace("cat", "dog")),
    part("the prompt cut at a line end", clean=lambda p: p.splitlines()[0] if p else p),
    part("only ASCII is read", clean=lambda p: p.encode("ascii", "ignore").decode()),
    part("UTF-8 read as Latin-1", clean=lambda p: p.encode().decode("latin-1")),
    part("lower case before special tokens are found", clean=str.lower),
    part("capitals are not lowered", encode=_not_lowered),
    part("special tokens are text", encode=_plain_specials),
    part("words end at every character outside ASCII", encode=_cut_at_non_ascii),
    part("BOS and EOS around each part", encode=_ends_of_each_part),
    *(
        part(f"weights parsed as {name}", parse=_in_place_of(parse))
        for name, parse in (
            ("A1111's", parse_attention),
            ("stable-diffusion.cpp's", parse_attention_sdcpp),
            ("ComfyUI's", parse_weights),
            ("text", literally),
        )
    ),
    part("BREAK is a word", parse=_in_place_of(_literal_break)),
    part("a weight outside of brackets counts", parse=_in_place_of(_without_brackets)),
    part("brackets add up", parse=_in_place_of(_sums)),
    part("a weight within other brackets replaces theirs", parse=_in_place_of(_innermost)),
    part("weights count half", parse=_in_place_of(_half)),
    part("a weight with a sign is text", parse=_of_engine(lambda p: re.sub(r":([+-])", r": \1 ", p))),
    part("negative weights without their sign", parse=_of_engine(weight=abs)),
    part("weight 0 taken for none, which is 1", parse=_of_engine(weight=lambda w: w or 1.0)),
    part("weights parsed and dropped", parse=_in_place_of(_unweighted)),
    part("only the first weighted part has its weight", parse=_only_first),
    *(
        part(f"chunks as {name}", chunk=lambda engine, cut=rule: lambda t, parts: cut(t, [p for p in parts if p]))
        for name, rule in (("ComfyUI's", by_parts), ("diffusers' one", cut_off))
    ),
    part("chunks wherever 75 are full", chunk=lambda engine: cut),
    part("chunks at commas", chunk=lambda engine: at_commas),
    part(f"a comma {FAR} tokens back is too far", chunk=_bounded(at_commas, far=FAR - 1)),
    part(f"a comma {FAR + 1} tokens back is near enough", chunk=_bounded(at_commas, far=FAR + 1)),
    part("no comma is too far", chunk=_bounded(at_commas, far=ROOM)),
    part(f"a part of {LONG} tokens is moved whole", chunk=_bounded(by_parts, long=LONG + 1)),
    part(f"a part of {LONG - 1} tokens is cut", chunk=_bounded(by_parts, long=LONG - 1)),
    part("76 tokens and no EOS", chunk=lambda engine: _one_more),
    part("only the first chunk is read", keep=lambda rule, chunks: chunks[:1]),
    part("an empty chunk at the end", keep=lambda rule, chunks: [*chunks, chunk([], [])]),
    part("BOS missing", ends=lambda ids: np.append(ids[1:], EOS)),
    part("EOS missing", ends=_without_eos),
    part("padding 0", pad=lambda ids, rule: _pad(ids, rule._replace(pad=0))),
    part("padding EOS", pad=lambda ids, rule: ids),
    part(
        "padding from the first EOS on",
        pad=lambda ids, rule: np.where(np.cumsum(ids == EOS) > 0, rule.pad or 0, ids),
    ),
    part("weights one token late", weigh=lambda w: np.append(1, w[:-1])),
    part("weights one token early", weigh=lambda w: np.append(w[1:], 1)),
    part("weights squared", weigh=np.square),
)

_WEIGHTS = "A photo of an Astronaut, 8K (masterpiece:1.3) [blurry] ((Sharp)) (eye (colour:0.8))"
_FOREIGN = (
    "caf\u00e9 cafe\u0301 na\u00efve \u65e5\u672c\u306e\u732b \U0001f431 "
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u00bd"
)
_LINES = "a lovely cat\nline two\r\n  two  blanks\tand the end, it's don't 3.14 --- #1 a_b"
_LONG = (
    "red photo of the mars, blue painting of the venus, green statue of the rome, dark drawing of the paris, "
    "soft render of the tokyo, wide sketch of the oslo, tall view of the quito, warm map of the lima, "
    "cold model of the cairo, bright scene of the delhi, calm portrait of the perth, quiet poster of the kyoto, "
    "sharp frame of the berlin, plain plate of the nairobi, round print of the manila, old mural of the milan"
)
_COLON = "a lovely cat:1.3, (mars:1.2), venus:0.5"
_SPECIAL = "<|startoftext|> cat <|ENDOFTEXT|> <|endoftext|> Dog <|im_start|>user"
_BREAK = "red BREAK blue (green BREAK:1.2) SUNBREAK up"
_SIGNS = "a (lovely:-1.1) cat (hat:0) (mars:+1.2) (venus:.5)"
_ESCAPED = r"\(not a weight\) a\b (x:1.2.3) (y: 1.5 ) [z:0.5] (open (twice"


def _case(label: str, engine: str, prompt: str, family: str = "sd1", encoder: str = "clip"):
    return case("clip_tokens", f"{engine}-{label}", engine=engine, prompt=prompt, family=family, encoder=encoder)


STAGES = (
    Stage(
        "clip_tokens",
        "A prompt as CLIP reads it, by an engine's rule.",
        inputs={},
        params={"engine": REQUIRED, "prompt": REQUIRED, "family": "sd1", "encoder": "clip"},
        outputs={
            "ids": Output(("chunk", "token"), spelled=spelled, text=lambda params, ids: _vocabulary().decode(ids)),
            "weights": Output(("chunk", "token"), magnitude, 8),
        },
        rule=RULE,
        run=_run,
        known=_KNOWN,
        cases=(
            *(_case("weights", engine, _WEIGHTS) for engine in ("sdcpp", "comfyui", "a1111", "diffusers")),
            *(_case("long", engine, _LONG) for engine in ("sdcpp", "comfyui", "a1111", "diffusers")),
            *(_case("break", engine, _BREAK) for engine in ("sdcpp", "comfyui", "a1111")),
            *(_case("escaped", engine, _ESCAPED) for engine in ("sdcpp", "comfyui", "a1111")),
            *(_case("colon", engine, _COLON) for engine in ("sdcpp", "a1111")),
            *(_case("signs", engine, _SIGNS) for engine in ("sdcpp", "comfyui", "a1111")),
            _case("foreign", "diffusers", _FOREIGN),
            _case("lines", "diffusers", _LINES),
            _case("special", "diffusers", _SPECIAL),
            *(_case(f"comma-{n}-back", "a1111", "red " * (75 - n) + ", " + "blue " * 30) for n in (20, 21)),
            *(_case(f"part-of-{n}", "comfyui", "red " * 70 + f"({'blue ' * n}:1.25)") for n in (7, 8)),
            *(_case("full", engine, "red " * 75) for engine in ("a1111", "comfyui")),
            _case("empty", "diffusers", ""),
            _case("empty", "a1111", ""),
            _case("long-weights", "comfyui", _LONG.replace("mars", "(mars:1.4)").replace("cairo", "((cairo))")),
            _case("padding-0", "diffusers", "a lovely cat", "sdxl", "clip_g"),
            _case("padding-0-long", "sdcpp", _LONG, "sdxl", "clip_g"),
        ),
        lacks=_lacks,
    ),
)
