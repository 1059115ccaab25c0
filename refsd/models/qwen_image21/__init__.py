"""The transformer of Qwen-Image 2.1: one stack of blocks for words and pictures, which share all weights.

The words come first and never see the picture that is drawn: each sees itself and what stands before it. Pictures
to edit stand among the words, where the prompt has their places; each sees itself and what stands before it too.
All of these are modulated as at time 0. So their keys and values are the same in every step, and engines compute
them once. The tokens of the picture that is drawn see everything.

Key names are those of ComfyUI's files, which are diffusers' but for the MLP: its gate and value are one matrix.
"""

from typing import NamedTuple

import numpy as np

from refsd.kernels.attention import boolean_mask
from refsd.kernels.tanh import tanh
from refsd.models.qwen_image import timestep_embedder
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

AXES_DIM = 16, 56, 56  # rotary channels of a head for the axes place in the sequence, row, column
THETA = 10000.0
EPS = 1e-6  # of every norm
PLACE = 4  # tokens of a reference, 2 x 2, for which a word of the context stands


class Run(NamedTuple):
    """Neighbouring tokens of the sequence: words, or a picture.

    tokens: how many
    word:   the first word of the context that it takes or stands for
    size:   height and width of a picture's latent; None: words
    """

    tokens: int
    word: int
    size: tuple[int, int] | None = None


class Modulation(NamedTuple):
    """What the time does to a branch of a block.

    scale: [N + 1, D], for the picture of each item, then for all words and references
    gate:  the same
    """

    scale: np.ndarray
    gate: np.ndarray


@block
def qwen_image21(
    m: Module, x, timesteps, context, context_mask=None, reference=(), places=(), axes_dim=AXES_DIM, eps=EPS
):
    """Predict the velocity, noise minus picture, of a noisy latent.

    x:            [N, C, H, W], H and W even; a pixel is a token
    timesteps:    [N], 0..1, the share of noise
    context:      [N, J, E], the output of Qwen3-VL's last layer before the norm, without the template's start
    context_mask: [N, J], 0 for words that nobody sees; None: all are seen
    reference:    [N, C, h, w] each, h and w even: the latents of the pictures to edit
    places:       number of the word where each reference begins; it stands for 2 x 2 tokens, as do the h w / 4 - 1
                  words after it, so that all items of a batch have their references in the same places
    axes_dim:     rotary channels of a head for each axis; their sum is head_dim
    eps:          of every norm
    -> v:         [N, C, H, W]

    Raises BadInput unless the references fit their places.
    Source: diffusers transformer_qwenimage21.py.
    """
    pictures = [*reference, x]
    runs = sequence(context.shape[1], places, [picture.shape[2:] for picture in pictures])
    tokens = np.concatenate([pixels(picture) for picture in pictures], axis=1)
    h = interleave(runs, txt_in(m["txt_in"], context, eps), m.linear("img_in", tokens))
    vec = time_text_embed(m["time_text_embed"], np.append(timesteps, 0.0))
    attn, mlp = modulations(m, vec)
    angle = m.rope_angles(token_ids(runs)[None], axes_dim, THETA)
    mask = key_mask(context_mask, runs)
    for i in range(m.count("transformer_blocks")):
        h = transformer_block(m["transformer_blocks"][i], h, attn, mlp, angle, mask, runs, eps)
    y = m.linear("proj_out", norm_out(m["norm_out"], h[:, -runs[-1].tokens :], vec, eps))
    return np.copy(y.swapaxes(1, 2), order="C").reshape(x.shape)


def pixels(x):
    """Return the tokens of a picture, row by row. [N, C, H, W] -> [N, H W, C]"""
    return np.copy(x.reshape(*x.shape[:2], -1).swapaxes(1, 2), order="C")


def sequence(J, places, sizes):
    """Return the runs of words and pictures, in the order in which the network sees them.

    J:      words of the context
    places: first word of each reference
    sizes:  height and width of the references' latents and of the picture that is drawn, which comes last

    Raises BadInput unless each reference has a place, after the one before it.
    """
    if len(places) != len(sizes) - 1:
        raise BadInput(
            f"{len(sizes) - 1} references and {len(places)} places: give the first word of each in places"
        )
    runs, word = [], 0
    for first, (H, W) in zip(places, sizes[:-1], strict=True):
        if first < word or first + H * W // PLACE > J:
            raise BadInput(
                f"a reference of {H} x {W} stands for {H * W // PLACE} words from word {first}; "
                f"there are {J}, and the words before {word} are taken: give other places"
            )
        runs += [Run(first - word, word), Run(H * W, first, (H, W))]
        word = first + H * W // PLACE
    H, W = sizes[-1]
    return [run for run in (*runs, Run(J - word, word), Run(H * W, J, (H, W))) if run.tokens]


def interleave(runs, words, pictures):
    """Put the pictures' tokens in their places among the words. [N, J, D], [N, L, D] -> [N, S, D]"""
    parts, at = [], 0
    for run in runs:
        if run.size is None:
            parts.append(words[:, run.word : run.word + run.tokens])
        else:
            parts.append(pictures[:, at : at + run.tokens])
            at += run.tokens
    return np.concatenate(parts, axis=1)


def token_ids(runs):
    """Return the positions of all tokens. -> [S, 3]

    A word has its number three times. A picture's tokens have the next number, and their row and column, which
    count from the centre: of three rows the positions are -2, -1, 0.
    """
    ids, number = [], 0
    for run in runs:
        if run.size is None:
            ids.append(np.repeat(number + np.arange(run.tokens)[:, None], 3, axis=1))
            number += run.tokens
        else:
            H, W = run.size
            row, column = np.indices((H, W)).reshape(2, -1)
            ids.append(np.stack([np.full_like(row, number), row - (H - H // 2), column - (W - W // 2)], axis=-1))
            number += steps_of(run.size)
    return np.concatenate(ids)


def steps_of(size):
    """Return by how much a picture advances the numbers of the words after it."""
    return max(size)


@block
def time_text_embed(m: Module, timesteps):
    """[N] -> [N, D]"""
    return timestep_embedder(m["timestep_embedder"], timesteps)


def modulations(m: Module, vec):
    """Return the Modulations of attention and MLP, the same in all blocks. vec [N + 1, D]"""
    vectors = np.split(m.linear("modulation.1", m.silu(vec)), 4, axis=-1)
    return Modulation(*vectors[:2]), Modulation(*vectors[2:])


@block
def txt_in(m: Module, context, eps):
    """RMSNorm, whose weight is less by 1 in the file, then an MLP with GELU. [N, J, E] -> [N, J, D]"""
    h = m.rms_norm("text_norm.weight", context, eps, plus=1.0)
    return m.linear("out_layer", m.gelu_tanh(m.linear("in_layer", h)))


@block
def transformer_block(m: Module, h, attn: Modulation, mlp: Modulation, angle, mask, runs, eps):
    """Attention and SwiGLU; the time scales their inputs and, through tanh, their outputs.

        h = h + tanh(gate) * f(norm(h) * (1 + scale))

    h:     [N, S, D], the runs' tokens
    angle: [1, S, head_dim / 2], radians
    mask:  [N, S], False for words that nobody sees, or None
    -> h:  [N, S, D]
    """
    y = attention(m["attn"], scaled(m, h, attn.scale, runs, eps), angle, mask, runs, eps)
    h = gated_add(m, h, y, attn.gate, runs)
    y = swiglu(m["img_mlp"], scaled(m, h, mlp.scale, runs, eps))
    return gated_add(m, h, y, mlp.gate, runs)


@block
def attention(m: Module, h, angle, mask, runs, eps):
    """Self-attention; queries and keys are normalised per head, then rotated (rope). [N, S, D] -> the same"""
    head_dim = m.shape("norm_q.weight")[0]
    q, k, v = (m.linear(name, h).reshape(*h.shape[:2], -1, head_dim) for name in ("to_q", "to_k", "to_v"))
    q = m.rope(m.rms_norm_apart("norm_q.weight", q, eps), angle)
    k = m.rope(m.rms_norm_apart("norm_k.weight", k, eps), angle)
    return m.linear("to_out.0", block_causal(m, q, k, v, mask, runs).reshape(*h.shape[:2], -1))


def block_causal(m: Module, q, k, v, mask, runs):
    """Attend, each run of tokens to the keys in its reach. [N, S, H, head] -> the same"""
    parts, start = [], 0
    for run in runs:
        end = start + run.tokens
        keys, diagonal = reach(run, start, runs)
        see = seen(mask, keys)
        parts.append(m.attention(q[:, start:end], k[:, :keys], v[:, :keys], mask=see, diagonal=diagonal))
        start = end
    return np.concatenate(parts, axis=1)


def reach(run, start, runs):
    """Return how many keys a run sees: those before it and its own; and from where on it sees no key after a token.

    start: its first token
    -> diagonal: `start` for words, each of which sees no token after it; None for pictures
    """
    return start + run.tokens, start if run.size is None else None


def key_mask(context_mask, runs):
    """Extend the mask of the words to all tokens; all pictures are seen. [N, J] -> [N, S], bool, or None"""
    if context_mask is None:
        return None
    words = np.asarray(context_mask) != 0
    return interleave(runs, words, np.ones((len(words), sum(run.tokens for run in runs if run.size)), bool))


def seen(mask, end):
    """Return the mask of the first `end` keys, added to the scores. -> [N, 1, 1, end] or None"""
    return None if mask is None else boolean_mask(mask[:, None, None, :end], np.float64)


@block
def swiglu(m: Module, h):
    """SwiGLU; the gate's rows come first. [N, L, D] -> the same"""
    return m.linear("out", m.swiglu(m.linear("gate_up", h)))


def scaled(m: Module, h, scale, runs, eps):
    """LayerNorm without weights, times 1 + scale. h [N, S, D], scale [N + 1, D] -> [N, S, D]"""
    parts = zip(split(m.layer_norm(None, h, eps), runs), by_run(scale, runs), strict=True)
    return np.concatenate([m.modulate(part, np.zeros_like(own), own) for part, own in parts], axis=1)


def gated_add(m: Module, h, y, gate, runs):
    """h + tanh(gate) * y. h, y [N, S, D], gate [N + 1, D] -> [N, S, D]"""
    parts = zip(split(h, runs), split(y, runs), by_run(m.apply(tanh, gate), runs), strict=True)
    return np.concatenate([m.gated_add(*part) for part in parts], axis=1)


def split(h, runs):
    """Cut the sequence into its runs. h [N, S, D]"""
    return np.split(h, np.cumsum([run.tokens for run in runs])[:-1], axis=1)


def by_run(vector, runs):
    """Return the rows of each run: words and references are at time 0. [N + 1, D] -> [N, D] each"""
    still = np.repeat(vector[-1:], len(vector) - 1, axis=0)
    return [*[still] * (len(runs) - 1), vector[:-1]]


@block
def norm_out(m: Module, h, vec, eps):
    """The last norm; its modulation has a scale, but no shift. h [N, L, D], vec [N + 1, D] -> [N, L, D]"""
    scale = m.linear("linear", m.silu(vec))[:-1]
    return m.adaptive_layer_norm(h, np.zeros_like(scale), scale, eps)
