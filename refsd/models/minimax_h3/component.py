"""The component of MiniMax-H3's transformer."""

from refsd.models.minimax_h3 import AXES_DIM, CONDITION_TIME, EPS, PATCH, THETA, minimax_h3
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component, Stack
from refsd.networks.fits import Fit, exactly, multiple_of, rotary_axes

_NORMS = "token_refiner.blocks.0.attn.q_norm.weight", "blocks.0.attn.q_norm.weight"


def _fits(m: Module) -> dict[str, Fit]:
    return {
        "axes_dim": rotary_axes(m, "condition_proj.weight", _NORMS, unturned=True),
        "C": exactly(m.shape("video_patch_proj.weight")[1] // PATCH**2),
        "A": exactly(m.shape("audio_patch_proj.weight")[1]),
        "E": exactly(m.shape("condition_proj.weight")[1]),
        "H": multiple_of(PATCH),
        "W": multiple_of(PATCH),
    }


COMPONENTS = {
    "minimax-h3": Component(
        "minimax-h3",
        minimax_h3,
        {
            "x": Argument("N C F H W", VALUE, "noisy latents of F frames"),
            "timesteps": Argument("N", POSITION, "0..1, the share of data in x"),
            "context": Argument("N J E", VALUE, "Qwen3-VL's hidden states after its 50th layer"),
            "audio": Argument("N A 2 T", VALUE, "noisy latents of the sound: left, then right"),
            "audio_timesteps": Argument("N", POSITION, "0..1, the share of data in the sound"),
            "first": Argument("N C 1 H W", VALUE, "latent of the video's first frame", optional=True),
            "last": Argument("N C 1 H W", VALUE, "latent of the video's last frame", optional=True),
        },
        {"out": "N C F H W", "audio_out": "N A 2 T"},
        {
            "vision": [],
            "condition_time": CONDITION_TIME,
            "axes_dim": [*AXES_DIM],
            "theta": THETA,
            "eps": EPS,
            "qk_eps": EPS,
            "final_eps": EPS,
        },
        _fits,
        stack=Stack(("blocks",)),
    ),
}
