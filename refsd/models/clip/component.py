"""The components of CLIP-L, H and bigG."""

from refsd.models.clip import clip_text, clip_text_with_projection
from refsd.models.language_model.component import INPUT_IDS
from refsd.module import Module
from refsd.networks.component import Component
from refsd.networks.fits import Fit, at_most, divisor_of, exactly

_PARAMS = {
    "num_heads": 12,
    "hidden_act": "quick_gelu",
    "clip_skip": 1,
    "eos": 49407,
    "final_norm": True,
    "eps": 1e-5,
}


def _fits(m: Module) -> dict[str, Fit]:
    positions, D = m.shape("text_model.embeddings.position_embedding.weight")
    return {
        "L": at_most(positions),
        "V": exactly(m.shape("text_model.embeddings.token_embedding.weight")[0]),
        "num_heads": divisor_of(D),
        "clip_skip": at_most(m.count("text_model.encoder.layers")),
    }


def _clip(m: Module, input_ids, **params):
    hidden, penultimate, pooled = clip_text(m, input_ids, **params)
    return hidden, pooled, penultimate


def _clip_g(m: Module, input_ids, **params):
    hidden, penultimate, pooled = clip_text_with_projection(m, input_ids, **params)
    return hidden, pooled, penultimate


COMPONENTS = {
    "clip": Component(
        "clip",
        _clip,
        {"input_ids": INPUT_IDS},
        {"last_hidden_state": "N L D", "pooled": "N D"},
        _PARAMS,
        _fits,
        also={"penultimate": "N L D"},
    ),
    "clip_g": Component(
        "clip_g",
        _clip_g,
        {"input_ids": INPUT_IDS},
        {"last_hidden_state": "N L D", "pooled": "N P"},
        _PARAMS | {"num_heads": 20, "hidden_act": "gelu"},
        _fits,
        also={"penultimate": "N L D"},
    ),
}
