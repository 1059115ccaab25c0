"""The component of LTX-2's transformer."""

from refsd.models.ltx2 import AUDIO_EXTENT, AUDIO_HEAD_DIM, EPS, EXTENT, FPS, HEAD_DIM, THETA, ltx2
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component, Stack
from refsd.networks.fits import Fit, exactly, layers_below, numbers


def _heads(m: Module, name: str, channels: int, also: int) -> Fit:
    """Constrain a head's channels: an even number, as many as the gates' heads; `also`: RoPE's channels, too.

    name: of the attention to itself
    """
    gated = m.shape(f"{name}.to_gate_logits.weight")[0] if f"{name}.to_gate_logits" in m else 0

    def holds(n: int) -> bool:
        heads = channels // n
        return n % 2 == 0 and channels % n == 0 and also % (2 * heads) == 0 and gated in (0, heads)

    number = f"{gated} heads" if gated else f"heads that divide {also} channels, too"
    return Fit(channels, f"an even number, {channels} channels in {number}", holds)


def _fits(m: Module) -> dict[str, Fit]:
    wide, channels = m.shape("patchify_proj.weight")
    narrow, audio_channels = m.shape("audio_patchify_proj.weight")
    fits = {
        "C": exactly(channels),
        "A": exactly(audio_channels),
        "head_dim": _heads(m, "transformer_blocks.0.attn1", wide, narrow),
        "audio_head_dim": _heads(m, "transformer_blocks.0.audio_attn1", narrow, narrow),
        "extent": numbers(3, above_zero=True),
        "values_only": layers_below(m.count("transformer_blocks")),
    }
    for letter, name, width in (("E", "caption_projection", wide), ("G", "audio_caption_projection", narrow)):
        fits[letter] = exactly(m.shape(f"{name}.linear_1.weight")[1] if name in m else width)
    return fits


COMPONENTS = {
    "ltx2": Component(
        "ltx2",
        ltx2,
        {
            "x": Argument("N C F H W", VALUE, "noisy latents of F frames"),
            "timesteps": Argument("N", POSITION, "0..1000"),
            "context": Argument("N J E", VALUE, "the video's text, of the connectors"),
            "audio": Argument("N T A", VALUE, "noisy latents of the sound"),
            "audio_timesteps": Argument("N", POSITION, "0..1000, of the sound"),
            "audio_context": Argument("N J G", VALUE, "the sound's text, of the connectors"),
            "frame_timesteps": Argument("N F", POSITION, "0..1000, of each latent frame", optional=True),
        },
        {"out": "N C F H W", "audio_out": "N T A"},
        {
            "fps": FPS,
            "head_dim": HEAD_DIM,
            "audio_head_dim": AUDIO_HEAD_DIM,
            "extent": [*EXTENT],
            "audio_extent": AUDIO_EXTENT,
            "theta": THETA,
            "split": True,
            "eps": EPS,
            "gate_scale": 1.0,
            "cross_timestep": True,
            "isolated": False,
            "values_only": [],
        },
        _fits,
        stack=Stack(("transformer_blocks",), picture=0),
    ),
}
