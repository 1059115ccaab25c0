"""The language models of Qwen2.5-VL and Qwen3-VL as text encoders: they return the hidden states of every layer.

Qwen3's layers (language_model.py), with rotary angles of three positions a token (M-RoPE): time, row and column of
an image's patch. A word has one position for all three, so a prompt without images is encoded as by plain RoPE.

Bai et al. 2025, "Qwen2.5-VL", section 2.1; Bai et al. 2025, "Qwen3-VL", section 2 (interleaved M-RoPE). Key names
as in the released models: Qwen2.5-VL's under `model.`, Qwen3-VL's under `model.language_model.`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.models.language_model import hidden_states
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

EPS = 1e-6
QWEN2_5_SECTIONS = 16, 24, 24  # frequencies of a head that turn by time, row, column
QWEN3_SECTIONS = 24, 20, 20
IMAGE_PAD = 151655  # the id of <|image_pad|>
CONTEXT_LAYERS = 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35  # hidden states of Qwen3-VL that a denoiser takes


@block
def qwen2_5_vl(
    m: Module,
    input_ids,
    attention_mask=None,
    positions=None,
    final_norm=True,
    pictures=None,
    image_token=IMAGE_PAD,
    sections=QWEN2_5_SECTIONS,
    theta=1e6,
    eps=EPS,
):
    """Encode token ids with Qwen2.5-VL.

    input_ids:      [N, L], integers
    attention_mask: [N, L], 0 for padding, which the attention ignores, else 1. None: no padding.
    positions:      [N, L, 3], time, row and column of each token; None: each token's number in its row, padding
                    included
    final_norm:     False to return the last layer's output as it is
    pictures:       [T, D], the vision tower's tokens of all images in turn (qwen_vision.py), in the place of the
                    tokens image_token; None: no images
    sections:       frequencies of a head for each of the three positions; their sum is head_dim / 2
    theta:          base of the rotary frequencies
    eps:            of every norm
    -> hidden_states: [N, L, D] each: the embeddings, then the output of each layer, the last one's after the final
                      norm. Qwen-Image uses hidden_states[-1].

    Raises BadInput if the prompts have not as many image tokens as there are of pictures.
    """
    m = m["model"]
    x = m.embedding("embed_tokens", input_ids)
    if pictures is not None:
        x = with_pictures(x, np.asarray(input_ids) == image_token, pictures)
    return encode(m, x, attention_mask, positions, final_norm, in_turn(sections), theta, eps)


@block
def qwen3_vl(
    m: Module,
    input_ids,
    attention_mask=None,
    positions=None,
    final_norm=True,
    pictures=None,
    deepstack=None,
    image_token=IMAGE_PAD,
    sections=QWEN3_SECTIONS,
    theta=5e6,
    eps=EPS,
):
    """Encode token ids with Qwen3-VL; arguments and result as in `qwen2_5_vl`.

    deepstack: [K, T, D], the vision tower's features of the same pictures (qwen3_vision): after each of the first K
               layers those of one merger are added in the pictures' places; None: nothing is added

    A denoiser takes twelve hidden states as its context, or the last one without the final norm.

    Raises BadInput also for deepstack without pictures.
    """
    if deepstack is not None and pictures is None:
        raise BadInput("deepstack belongs to pictures, which are not given: give both, or neither")
    m = m["model"]["language_model"]
    x = m.embedding("embed_tokens", input_ids)
    added = ()
    if pictures is not None:
        places = np.asarray(input_ids) == image_token
        x = with_pictures(x, places, pictures)
        added = features_in_places(x, places, deepstack)
    return encode(m, x, attention_mask, positions, final_norm, interleaved(sections), theta, eps, added)


def with_pictures(x, places, pictures):
    """Return the embeddings with pictures' tokens in their places. x [N, L, D], places [N, L], pictures [T, D]"""
    if places.sum() != len(pictures):
        raise BadInput(f"the prompts have {places.sum()} image tokens, the pictures {len(pictures)}")
    if not places.any():
        return x
    number = np.cumsum(places).reshape(places.shape) - 1  # of each place, and in between of the one before
    return np.where(places[..., None], np.take(pictures, np.maximum(number, 0), axis=0).astype(x.dtype), x)


def features_in_places(x, places, deepstack):
    """Return what is added to the first layers' outputs: 0 for words. x [N, L, D], deepstack [K, T, D] or None"""
    nothing = np.zeros(x.shape, x.dtype)
    return tuple(with_pictures(nothing, places, features) for features in (() if deepstack is None else deepstack))


def encode(m: Module, x, attention_mask, positions, final_norm, axis, theta, eps=EPS, added=()):
    """Run the language model.

    x:     [N, L, D], embeddings
    axis:  [head_dim / 2], which of the three positions each frequency turns by
    added: [N, L, D] each, added to the outputs of the first layers
    """
    if positions is None:
        positions = np.broadcast_to(np.arange(x.shape[1])[None, :, None], (1, x.shape[1], 3))
    return hidden_states(m, x, mrope_angles(m, positions, axis, theta), attention_mask, eps, final_norm, added)


def in_turn(sections):
    """Qwen2.5-VL: the first frequencies turn by time, the next by row, the last by column. -> [head_dim / 2]"""
    return np.repeat([0, 1, 2], sections)


def interleaved(sections):
    """Qwen3-VL: time, row, column in turn, until the rows and columns are used up. -> [head_dim / 2]"""
    axis = np.arange(sum(sections)) % 3
    for i in (1, 2):
        axis[3 * sections[i] :][axis[3 * sections[i] :] == i] = 0
    return axis


def mrope_angles(m: Module, positions, axis, theta):
    """Return the rotary angles: positions[..., axis[i]] * theta ** (-i / len(axis)).

    positions: [N, L, 3]
    -> angle:  [N, L, head_dim / 2], radians
    """
    return np.choose(axis, [m.rope_angles(positions[..., i, None], (2 * len(axis),), theta) for i in range(3)])


class ImageRule(NamedTuple):
    """How an image is numbered.

    patches: number of its first token, rows, columns -> [rows * columns, 3]
    step:    rows, columns -> how much later the next word's number is
    """

    patches: Callable[[int, int, int], np.ndarray]
    step: Callable[[int, int], int]


IMAGE_RULE = ImageRule(lambda number, rows, columns: number + np.indices((1, rows, columns)).reshape(3, -1).T, max)


def text_and_image_positions(input_ids, attention_mask, image_token, grids, rule=IMAGE_RULE):
    """Return the positions of the tokens of prompts with images.

    A word's three positions are its number, counted from the word before it. An image's patches have the next
    number as their time, and that number plus their row and their column; the next word counts on from
    max(rows, columns).

    input_ids:      [N, L]; each image is a run of `image_token`
    attention_mask: [N, L], 0 for padding, which is not counted; None: no padding
    grids:          (rows, columns) of the merged patches of each image, in the order of the prompts
    rule:           of images; another than the default is a known bug's
    -> positions:   [N, L, 3]; 0 for padding

    Raises BadInput unless each run of image tokens has the length of its image.
    Source: transformers 5, Qwen2_5_VLModel.get_rope_index.
    """
    ids = np.asarray(input_ids)
    seen = np.ones(ids.shape, bool) if attention_mask is None else np.asarray(attention_mask) != 0
    positions = np.zeros((*ids.shape, 3), np.int64)
    left = list(grids)
    for n in range(len(ids)):
        (tokens,) = np.nonzero(seen[n])
        number = at = 0
        while at < len(tokens):
            patches, step = np.full((1, 3), number), 1
            if ids[n, tokens[at]] == image_token:
                rows, columns = left.pop(0) if left else (0, 0)
                run = tokens[at : at + rows * columns]
                if rows * columns == 0 or len(run) < rows * columns or (ids[n, run] != image_token).any():
                    raise BadInput(f"prompt {n}: token {at} begins an image that its tokens do not fit")
                patches, step = rule.patches(number, rows, columns), rule.step(rows, columns)
            positions[n, tokens[at : at + len(patches)]] = patches
            number, at = number + step, at + len(patches)
    if left:
        raise BadInput(f"the prompts have no tokens for {len(left)} of {len(grids)} images")
    return positions
