"""The component of MiniMax-H3's transformer."""

from refsd.models.minimax_h3 import AXES_DIM, CONDITION_TIME, EPS, PATCH, THETA, minimax_h3
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component, Fit, Stack, exactly, multiple_of


def _rotary(head_dim: int) -> Fit:
    """Return the constraint of the rotary channels of a head for each axis, which may leave channels unturned."""

    def holds(dims) -> bool:
        listed = type(dims) is list and len(dims) == 3
        return listed and all(type(n) is int and n > 0 and n % 2 == 0 for n in dims) and sum(dims) <= head_dim

    return Fit(head_dim, f"3 even numbers whose sum is at most {head_dim}, the norms' width", holds, alone=True)


def _fits(m: Module) -> dict[str, Fit]:
    norm = "token_refiner.blocks.0.attn.q_norm.weight"
    head_dim = m.shape(norm if norm in m.weights else "blocks.0.attn.q_norm.weight")[0]
    return {
        "axes_dim": _rotary(head_dim),
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
            "x": Argument("N C T H W", VALUE, "noisy latents of T frames"),
            "timesteps": Argument("N", POSITION, "0..1, the share of data in x"),
            "context": Argument("N J E", VALUE, "Qwen3-VL's hidden states after its 50th layer"),
            "audio": Argument("N A 2 L", VALUE, "noisy latents of the sound: left, then right"),
            "audio_timesteps": Argument("N", POSITION, "0..1, the share of data in the sound"),
            "first": Argument("N C 1 H W", VALUE, "latent of the video's first frame", optional=True),
            "last": Argument("N C 1 H W", VALUE, "latent of the video's last frame", optional=True),
        },
        {"out": "N C T H W", "audio_out": "N A 2 L"},
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
