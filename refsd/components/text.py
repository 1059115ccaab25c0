"""The components of the text encoders: CLIP-L, H and bigG, T5 and UMT5, Qwen3, Qwen2.5-VL, Qwen3-VL, Mistral,
Gemma 2.
"""

import math

from refsd.components.component import (
    IDS,
    MASK,
    POSITION,
    VALUE,
    Argument,
    Component,
    Fit,
    at_most,
    divisor_of,
    exactly,
    whole_heads,
)
from refsd.models.clip import clip_text, clip_text_with_projection
from refsd.models.flux2 import MISTRAL_LAYERS, QWEN3_LAYERS, stacked
from refsd.models.gemma2 import CAP, HEAD_DIM, WINDOW, gemma2
from refsd.models.mistral import mistral
from refsd.models.qwen3 import qwen3
from refsd.models.qwen_vl import IMAGE_PAD, KREA2_LAYERS, QWEN2_5_SECTIONS, QWEN3_SECTIONS, qwen2_5_vl, qwen3_vl
from refsd.models.t5 import t5_encoder
from refsd.module import Module
from refsd.numerics.errors import BadInput

INPUT_IDS = Argument("N L", IDS, "token ids, begun and ended")
ATTENTION_MASK = Argument("N L", MASK, "0 where a token is padding and not to be seen", optional=True)
PICTURES = Argument("T D", VALUE, "tokens of all pictures in turn, by qwen2_5_vision", optional=True)
POSITIONS = Argument(
    "N L 3", POSITION, "time, row and column of each token; left out: its number", True, fixed=True
)
_CLIP_PARAMS = {"num_heads": 12, "hidden_act": "quick_gelu", "clip_skip": 1, "eos": 49407, "final_norm": True}


def _clip_fits(m: Module) -> dict[str, Fit]:
    positions, D = m.shape("text_model.embeddings.position_embedding.weight")
    return {
        "L": at_most(positions),
        "V": exactly(m.shape("text_model.embeddings.token_embedding.weight")[0]),
        "num_heads": divisor_of(D),
        "clip_skip": at_most(m.count("text_model.encoder.layers")),
    }


def _llm_fits(m: Module) -> dict[str, Fit]:
    return {"V": exactly(m.shape("model.embed_tokens.weight")[0])}


def _qwen_vl_fits(m: Module) -> dict[str, Fit]:
    root = "model.language_model" if "model.language_model" in m else "model"
    attention = f"{root}.layers.0.self_attn"
    for name in ("q", "k"):
        norms = (f"{attention}.{name}_norm.weight",)
        whole_heads(m, f"{attention}.{name}_proj.weight", 2 * sum(QWEN3_SECTIONS), norms)
    V, D = m.shape(f"{root}.embed_tokens.weight")
    return {"V": exactly(V), "D": exactly(D)}


def _headed_fits(m: Module) -> dict[str, Fit]:
    attention = m["model"]["layers"][0]["self_attn"]
    rows = math.gcd(attention.shape("q_proj.weight")[0], attention.shape("k_proj.weight")[0])
    even = Fit(rows, f"an even divisor of {rows}", lambda size: size % 2 == 0 and rows % size == 0)
    return _llm_fits(m) | {"head_dim": even}


def _clip(m: Module, input_ids, **params):
    hidden, penultimate, pooled = clip_text(m, input_ids, **params)
    return hidden, pooled, penultimate


def _clip_g(m: Module, input_ids, **params):
    hidden, penultimate, pooled = clip_text_with_projection(m, input_ids, **params)
    return hidden, pooled, penultimate


def _qwen3(m: Module, input_ids, attention_mask=None, layers=(), **given):
    return _context(qwen3(m, input_ids, attention_mask, **given), layers, QWEN3_LAYERS)


def _qwen2_5_vl(m: Module, input_ids, attention_mask=None, positions=None, layers=(), **given):
    return _context(qwen2_5_vl(m, input_ids, attention_mask, positions, **given), layers)


def _qwen3_vl(m: Module, input_ids, attention_mask=None, positions=None, layers=(), **given):
    return _context(qwen3_vl(m, input_ids, attention_mask, positions, **given), layers, KREA2_LAYERS)


def _mistral(m: Module, input_ids, attention_mask=None, layers=(), **given):
    return _context(mistral(m, input_ids, attention_mask, **given), layers, MISTRAL_LAYERS)


def _gemma2(m: Module, input_ids, attention_mask=None, layers=(), **given):
    return _context(gemma2(m, input_ids, attention_mask, **given), layers)


def _context(hidden_states, layers, usual=()) -> dict:
    """Select hidden states for a denoiser: those of `layers`, else the last two, and `usual` as context."""
    if layers:
        if not all(type(i) is int and i >= 0 for i in layers):
            raise BadInput(f"param layers is {str(layers)[:40]}, expected numbers of hidden states, from 0 on")
        return {"hidden_states": stacked(hidden_states, layers)}
    states = {"last_hidden_state": hidden_states[-1], "penultimate": hidden_states[-2]}
    deep_enough = usual and len(hidden_states) > max(usual)
    return states | ({"context": stacked(hidden_states, usual)} if deep_enough else {})


COMPONENTS = {
    "clip": Component(
        "clip",
        _clip,
        {"input_ids": INPUT_IDS},
        {"last_hidden_state": "N L D", "pooled": "N D"},
        _CLIP_PARAMS,
        _clip_fits,
        also={"penultimate": "N L D"},
    ),
    "clip_g": Component(
        "clip_g",
        _clip_g,
        {"input_ids": INPUT_IDS},
        {"last_hidden_state": "N L D", "pooled": "N P"},
        _CLIP_PARAMS | {"num_heads": 20, "hidden_act": "gelu"},
        _clip_fits,
        also={"penultimate": "N L D"},
    ),
    "t5": Component(
        "t5",
        t5_encoder,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D"},
        {},
        lambda m: {"V": exactly(m.shape("shared.weight")[0])},
    ),
    "qwen3": Component(
        "qwen3",
        _qwen3,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {"layers": [], "theta": 1e6, "eps": 1e-6},
        _llm_fits,
        also={"context": "N L 3D"},
    ),
    "qwen2_5_vl": Component(
        "qwen2_5_vl",
        _qwen2_5_vl,
        {
            "input_ids": INPUT_IDS,
            "attention_mask": ATTENTION_MASK,
            "positions": POSITIONS,
            "pictures": PICTURES,
        },
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {
            "layers": [],
            "final_norm": True,
            "image_token": IMAGE_PAD,
            "sections": [*QWEN2_5_SECTIONS],
            "theta": 1e6,
            "eps": 1e-6,
        },
        _qwen_vl_fits,
    ),
    "qwen3_vl": Component(
        "qwen3_vl",
        _qwen3_vl,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK, "positions": POSITIONS},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {"layers": [], "final_norm": True, "sections": [*QWEN3_SECTIONS], "theta": 5e6, "eps": 1e-6},
        _qwen_vl_fits,
        also={"context": "N L 12D"},
    ),
    "mistral": Component(
        "mistral",
        _mistral,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {"head_dim": 128, "layers": [], "theta": 1e9, "eps": 1e-5},
        _headed_fits,
        also={"context": "N L 3D"},
    ),
    "gemma2": Component(
        "gemma2",
        _gemma2,
        {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        {
            "head_dim": HEAD_DIM,
            "layers": [],
            "theta": 1e4,
            "eps": 1e-6,
            "scalar": float(HEAD_DIM),
            "cap": CAP,
            "window": WINDOW,
        },
        _headed_fits,
    ),
}
