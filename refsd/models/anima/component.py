"""The component of Anima's transformer."""

from refsd.models.anima import EPS, PATCH, ROPE_SCALE, anima
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, multiple_of, numbers, whole_heads


def _fits(m: Module) -> dict[str, Fit]:
    norm = "blocks.0.self_attn.q_norm.weight"
    whole_heads(m, "blocks.0.self_attn.q_proj.weight", m.shape(norm)[0], (norm,))
    return {
        "C": exactly(m.shape("x_embedder.proj.1.weight")[1] // PATCH**2 - 1),
        "E": exactly(m.shape("blocks.0.cross_attn.k_proj.weight")[1]),
        "rope_scale": numbers(3, above_zero=True),
        **dict.fromkeys("HW", multiple_of(PATCH)),
    }


COMPONENTS = {
    "anima": Component(
        "anima",
        anima,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
            "context": Argument("N J E", VALUE, "the text conditioner's output"),
        },
        {"out": "N C H W"},
        {"rope_scale": [*ROPE_SCALE], "eps": EPS, "qk_eps": EPS},
        _fits,
    ),
}
