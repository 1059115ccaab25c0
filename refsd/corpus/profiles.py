"""Profiles: the cases that an engine must pass to claim one, as globs over the names of a corpus version.

A profile is met if every case of it is judged and passes: a case that the engine refuses, and one that is waived,
is not passed. Cases that are added to refsd later belong to no version until the next is made.
"""

from typing import NamedTuple


class Profile(NamedTuple):
    """
    what:  what an engine that meets it can compute, in a phrase
    globs: names of cases; each matches at least one case of the version
    """

    what: str
    globs: tuple[str, ...]


_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "sigmoid", "tanh", "relu", "leaky_relu", "softmax")
_GATES = ("add", "mul", "concat", "gated_add", "geglu", "swiglu", "modulate", "adaptive_layer_norm")
_NORMS = ("group_norm", "layer_norm", "rms_norm", "l2_norm")
_POSITIONS = ("rope", "sincos_positions", "timestep_embedding")
_PICTURES = (
    "pad",
    "patchify",
    "unpatchify",
    "pixel_shuffle",
    "pixel_unshuffle",
    "upsample_nearest",
    "resize_nearest",
)

_CLIP = ("clip-l/*", "clip-g/*")
_FLUX_VAE = ("flux-vae/*",)

PROFILES: dict[str, Profile] = {
    "ops": Profile(
        "float32 and float16 operations of the networks",
        (
            *("conv2d/*", "attention/*", "linear/f32/*", "linear/f16/*", "embedding/f32/*"),
            *(f"{op}/*" for op in (*_ACTIVATIONS, *_GATES, *_NORMS, *_POSITIONS, *_PICTURES)),
        ),
    ),
    "core": Profile(
        "the dozen operations that every network needs, in float32",
        tuple(
            f"{op}/f32/*"
            for op in (
                "conv2d",
                "attention",
                "linear",
                "group_norm",
                "layer_norm",
                "rms_norm",
                "silu",
                "gelu",
                "softmax",
            )
        ),
    ),
    "blocks": Profile(
        "GGUF's block types: expanded, looked up and multiplied",
        ("dequantize/*", "embedding/q*", "linear/q*"),
    ),
    "adapters": Profile(
        "LoRA, LoKr and the other adapters", ("lora/*", "lora_conv2d/*", "lokr*/*", "stage/adapter/*")
    ),
    "samplers": Profile("samplers and schedules", ("trajectory/*", "stage/sigmas/*", "stage/step_noise/*")),
    "text": Profile(
        "prompts to tokens to hidden states", ("stage/clip_tokens/*", "stage/language_tokens/*", "stage/emphasis/*")
    ),
    "sd15": Profile("Stable Diffusion 1.5: UNet, text encoder, autoencoder", ("sd15/*",)),
    "sdxl": Profile("SDXL: UNet and text encoders", ("sdxl/*", *_CLIP)),
    "sd3": Profile("Stable Diffusion 3 and 3.5", ("sd3*/*", *_CLIP, "t5xxl/*", *_FLUX_VAE)),
    "flux": Profile(
        "FLUX.1 dev, schnell and Fill, their text encoders and autoencoder",
        ("flux-dev/*", "flux-schnell/*", "flux-fill/*", "clip-l/*", "t5xxl/*", *_FLUX_VAE),
    ),
    "flux2": Profile(
        "FLUX.2 dev and klein, and their autoencoder", ("flux2-dev/*", "flux2-klein/*", "flux2-vae/*")
    ),
    "chroma": Profile("Chroma", ("chroma/*", "t5xxl/*", *_FLUX_VAE)),
    "zimage": Profile("Z-Image, its text encoder and autoencoder", ("zimage/*", "qwen3-4b/*", *_FLUX_VAE)),
}
