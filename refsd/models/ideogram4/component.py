"""The component of Ideogram 4's transformer."""

from collections.abc import Mapping

from refsd.models.ideogram4 import EPS, NORM, SECTIONS, THETA, UNCONDITIONAL, ideogram4
from refsd.module import Module
from refsd.networks.component import MASK, POSITION, VALUE, Argument, Component, Stack
from refsd.networks.dimensions import Shape
from refsd.networks.fits import Fit, exactly, whole_heads
from refsd.numerics.errors import BadInput


def _fits(m: Module) -> dict[str, Fit]:
    head_dim = m.shape(NORM)[0]
    whole_heads(m, "input_proj.weight", head_dim, (NORM, NORM.replace("norm_q", "norm_k")))

    def holds(sections) -> bool:
        numbers = type(sections) is list and len(sections) == 3 and all(type(n) is int and n > 0 for n in sections)
        return numbers and all(3 * n - 3 + i < head_dim // 2 for i, n in enumerate(sections) if i)

    return {
        "sections": Fit(3, f"3 whole numbers that {head_dim // 2} frequencies have room for", holds, alone=True),
        "C": exactly(m.shape("input_proj.weight")[1]),
        "E": exactly(m.shape("llm_cond_proj.weight")[1]),
    }


def _second_network(own: Mapping[str, Shape], other: Mapping[str, Shape], file: object) -> dict[str, str]:
    """Name the weights of the network for calls without a prompt. Raises BadInput if it takes other latents."""
    name = "input_proj.weight"
    here, there = own[name], other.get(name, ())
    if here[1:] != there[1:]:
        raise BadInput(f'{file}: tensor "{name}" has shape {list(there)}, and the first network takes {list(here)}')
    return {f"{UNCONDITIONAL}.{name}": name for name in other}


COMPONENTS = {
    "ideogram4": Component(
        "ideogram4",
        ideogram4,
        {
            "x": Argument("N C H W", VALUE, "noisy latent, packed and normalised: 128 channels"),
            "timesteps": Argument("N", POSITION, "0..1, the share of data in x"),
            "context": Argument("N J E", VALUE, "thirteen hidden states of Qwen3-VL, channel by channel"),
            "context_mask": Argument("N J", MASK, "0 where a token is padding", optional=True),
        },
        {"out": "N C H W"},
        {"sections": [*SECTIONS], "theta": THETA, "eps": EPS, "squares_first": True},
        _fits,
        beside={"ideogram4-unconditional": _second_network},
        stack=Stack(("layers",)),
    ),
}
