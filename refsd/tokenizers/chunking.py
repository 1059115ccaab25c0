"""Split a prompt's parts into chunks of 75 tokens between BOS and EOS, as each engine does."""

from collections.abc import Sequence

from refsd.tokenizers.prompt import ROOM, Chunk, Part, chunk
from refsd.tokenizers.vocabulary import Tokenizer

Parts = Sequence[Part | None]
FAR = 20
LONG = 8


def at_commas(tokenizer: Tokenizer, parts: Parts, far: int = FAR) -> list[Chunk]:
    """Cut after 75 tokens, or after the last comma if that is at most `far` tokens back.

    A BREAK ends the chunk, even an empty one.
    Source: A1111 modules/sd_hijack_clip.py, Forge backend/text_processing/classic_engine.py, tokenize_line.
    """
    comma = tokenizer.encode(",")[0]
    done: list[list[tuple[int, float]]] = []
    now: list[tuple[int, float]] = []
    last_comma = -1
    for part in parts:
        if part is None:
            done, now, last_comma = [*done, now], [], -1
            continue
        for token in tokenizer.encode(part[0]):
            if token == comma:
                last_comma = len(now)
            elif len(now) == ROOM and last_comma >= 0 and ROOM - last_comma <= far:
                done, now, last_comma = [*done, now[: last_comma + 1]], now[last_comma + 1 :], -1
            if len(now) == ROOM:
                done, now, last_comma = [*done, now], [], -1
            now.append((token, part[1]))
    if now or not done:
        done.append(now)
    return [chunk(*_split(tokens)) for tokens in done]


def by_parts(tokenizer: Tokenizer, parts: Parts, long: int = LONG) -> list[Chunk]:
    """Cut after 75 tokens, but move a part of fewer than `long` tokens whole into the next chunk.

    There is no BREAK.

    Source: ComfyUI comfy/sd1_clip.py, SDTokenizer.tokenize_with_weights.
    """
    done: list[list[tuple[int, float]]] = [[]]
    for part in parts:
        assert part is not None
        group = [(token, part[1]) for token in tokenizer.encode(part[0])]
        splittable = len(group) >= long
        while group:
            room = ROOM - len(done[-1])
            if len(group) <= room:
                done[-1] += group
                break
            if splittable:
                done[-1] += group[:room]
                group = group[room:]
            done.append([])
    return [chunk(*_split(tokens)) for tokens in done]


def cut_off(tokenizer: Tokenizer, parts: Parts) -> list[Chunk]:
    """Return one chunk of the first 75 tokens; drop the rest. Source: diffusers encode_prompt, truncation."""
    tokens = [(token, part[1]) for part in parts if part for token in tokenizer.encode(part[0])]
    return [chunk(*_split(tokens[:ROOM]))]


def _split(tokens: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [token for token, _ in tokens], [weight for _, weight in tokens]
