"""The components of Qwen2.5-VL and Qwen3-VL."""

from typing import Any

from refsd.models.language_model.component import ATTENTION_MASK, INPUT_IDS, selecting
from refsd.models.qwen_vl import CONTEXT_LAYERS, IMAGE_PAD, QWEN2_5_SECTIONS, QWEN3_SECTIONS, qwen2_5_vl, qwen3_vl
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component
from refsd.networks.fits import Fit, at_most, exactly, whole_heads

PICTURES = Argument("T D", VALUE, "the vision tower's tokens of all pictures in turn", optional=True)
DEEPSTACK = Argument("K T D", VALUE, "the vision tower's features for the first layers", optional=True)
POSITIONS = Argument(
    "N L 3", POSITION, "time, row and column of each token; left out: its number", True, fixed=True
)


def _fits(m: Module) -> dict[str, Fit]:
    root = "model.language_model" if "model.language_model" in m else "model"
    attention = f"{root}.layers.0.self_attn"
    for name in ("q", "k"):
        norms = (f"{attention}.{name}_norm.weight",)
        whole_heads(m, f"{attention}.{name}_proj.weight", 2 * sum(QWEN3_SECTIONS), norms)
    V, D = m.shape(f"{root}.embed_tokens.weight")
    return {"V": exactly(V), "D": exactly(D), "K": at_most(m.count(f"{root}.layers"))}


_QWEN2_5 = {
    "input_ids": INPUT_IDS,
    "attention_mask": ATTENTION_MASK,
    "positions": POSITIONS,
    "pictures": PICTURES,
}


def _params(sections, theta: float) -> dict[str, Any]:
    rope = {"sections": [*sections], "theta": theta}
    return {"layers": [], "final_norm": True, "image_token": IMAGE_PAD, **rope, "eps": 1e-6}


COMPONENTS = {
    "qwen2_5_vl": Component(
        "qwen2_5_vl",
        selecting(qwen2_5_vl),
        _QWEN2_5,
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        _params(QWEN2_5_SECTIONS, 1e6),
        _fits,
    ),
    "qwen3_vl": Component(
        "qwen3_vl",
        selecting(qwen3_vl, CONTEXT_LAYERS),
        {**_QWEN2_5, "deepstack": DEEPSTACK},
        {"last_hidden_state": "N L D", "penultimate": "N L D"},
        _params(QWEN3_SECTIONS, 5e6),
        _fits,
        also={"context": "N L 12D"},
    ),
}
