"""The component of Anima's text conditioner."""

from refsd.models.anima_conditioner import LENGTH, anima_conditioner
from refsd.module import Module
from refsd.networks.component import IDS, MASK, VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, whole_heads


def _fits(m: Module) -> dict[str, Fit]:
    for part in ("self_attn", "cross_attn"):
        norm = f"blocks.0.{part}.q_norm.weight"
        whole_heads(m, f"blocks.0.{part}.q_proj.weight", m.shape(norm)[0], (norm,))
    return {
        "V": exactly(m.shape("embed.weight")[0]),
        "E": exactly(m.shape("blocks.0.cross_attn.k_proj.weight")[1]),
    }


COMPONENTS = {
    "anima-conditioner": Component(
        "anima-conditioner",
        anima_conditioner,
        {
            "input_ids": Argument("N L", IDS, "T5's token ids"),
            "context": Argument("N J E", VALUE, "Qwen3's last hidden states"),
            "attention_mask": Argument("N L", MASK, "0 where one of T5's tokens is padding", optional=True),
            "context_mask": Argument("N J", MASK, "0 where one of Qwen3's tokens is padding", optional=True),
        },
        {"last_hidden_state": "N T D"},
        {"length": LENGTH},
        _fits,
    ),
}
