"""The UNet of SD 1.x, 2.x and SDXL, and a ControlNet beside it."""

from refsd.components.component import (
    POSITION,
    VALUE,
    Argument,
    Component,
    Fit,
    divisor_of,
    exactly,
    multiple_of,
    needed,
    refused,
)
from refsd.models.controlnet import controlnet
from refsd.models.unet import unet
from refsd.module import Module

CONTROL = "control_model"

X = Argument("N C H W", VALUE, "noisy latent, scaled as the sampler scales it")
TIMESTEPS = Argument("N", POSITION, "0..999, fractions allowed")
CONTEXT = Argument("N J E", VALUE, "hidden states of the text encoder")
Y = Argument("N A", VALUE, "SDXL: pooled text, then the sizes, embedded", optional=True)
HINT = Argument("N 3 8H 8W", VALUE, "picture for a ControlNet, 0..1", optional=True)


def _run(m: Module, hint=None, control_strength=1.0, **arguments):
    """The UNet; given a hint, with what the ControlNet beside it adds."""
    if hint is None:
        return unet(m, **arguments)
    control = controlnet(m[CONTROL], hint=hint, strength=control_strength, **arguments)
    return unet(m, **arguments, control=control)


def _control(m: Module, **arguments) -> dict:
    return {f"control.{i}": part for i, part in enumerate(controlnet(m, **arguments))}


def _shared_fits(m: Module) -> dict[str, Fit]:
    downsamples = sum("0.op" in m["input_blocks"][i] for i in range(m.count("input_blocks")))
    channels, C, _, _ = m.shape("input_blocks.0.0.weight")
    fits = {"C": exactly(C), "num_heads": divisor_of(channels), "num_groups": divisor_of(channels)}
    fits["H"] = fits["W"] = multiple_of(2**downsamples)
    if "label_emb" in m:
        fits |= {"y": needed("the weights have label_emb"), "A": exactly(m.shape("label_emb.0.0.weight")[1])}
    else:
        fits["y"] = refused("the weights have no label_emb")
    own = m.prefix
    context = [key for key in m.weights if key.startswith(own) and key.endswith("attn2.to_k.weight")]
    return fits | ({"E": exactly(m.weights[context[0]].shape[1])} if context else {})


def _unet_fits(m: Module) -> dict[str, Fit]:
    without = {} if CONTROL in m else {"hint": refused("no ControlNet was given; name one with --control-net")}
    return _shared_fits(m) | without | {"K": exactly(m.shape("out.2.weight")[0])}


COMPONENTS = {
    "unet": Component(
        "unet",
        _run,
        {"x": X, "timesteps": TIMESTEPS, "context": CONTEXT, "y": Y, "hint": HINT},
        {"out": "N K H W"},
        {"num_heads": 8, "num_groups": 32, "control_strength": 1.0},
        _unet_fits,
        beside="controlnet",
    ),
    "controlnet": Component(
        "controlnet",
        _control,
        {
            "x": X,
            "hint": HINT._replace(optional=False),
            "timesteps": TIMESTEPS,
            "context": CONTEXT,
            "y": Y,
        },
        {"control.0": "N D H W", "control.1": "one for each skip, and last the middle"},
        {"num_heads": 8, "num_groups": 32, "strength": 1.0},
        _shared_fits,
    ),
}
