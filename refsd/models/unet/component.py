"""The component of the UNet of SD 1.x, 2.x and SDXL, with an optional ControlNet and IP-Adapter."""

import math
from collections.abc import Mapping

from refsd.models.controlnet import controlnet
from refsd.models.controlnet.union import LAYERS, TASKS
from refsd.models.ip_adapter.network import cross_attentions, key_and_value
from refsd.models.unet import goes_down, goes_up, unet
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component
from refsd.networks.dimensions import Shape
from refsd.networks.fits import Fit, divisor_of, exactly, needed, refused
from refsd.numerics.errors import BadInput

CONTROL = "control_model"
_KEYS, _VALUES = ".to_k_ip.weight", ".to_v_ip.weight"

X = Argument("N C H W", VALUE, "noisy latent, scaled as the sampler scales it")
TIMESTEPS = Argument("N", POSITION, "0..999, fractions allowed")
CONTEXT = Argument("N J E", VALUE, "hidden states of the text encoder")
Y = Argument("N A", VALUE, "SDXL: pooled text, then the sizes, embedded", optional=True)
IP_TOKENS = Argument("N T E", VALUE, "image prompt of an IP-Adapter", optional=True)
HINT = Argument("N 3 8H 8W", VALUE, "picture for a ControlNet, 0..1", optional=True)


def _run(m: Module, hint=None, control_strength=1.0, control_type=0, ip_tokens=None, ip_scale=1.0, **arguments):
    """Run the UNet; with a hint, add the outputs of the ControlNet whose weights are under the prefix CONTROL."""
    control = None
    if hint is not None:
        settings = {"strength": control_strength, "control_type": control_type}
        control = controlnet(m[CONTROL], hint=hint, **settings, **arguments)
    return unet(m, **arguments, control=control, ip_tokens=ip_tokens, ip_scale=ip_scale)


def shared_fits(m: Module) -> dict[str, Fit]:
    channels, C, _, _ = m.shape("input_blocks.0.0.weight")
    widths, attending = _levels(m)
    fits = {"C": exactly(C), "num_heads": _heads(attending, len(widths), _is_linear(m))}
    fits["num_groups"] = divisor_of(math.gcd(channels, *widths))
    if "label_emb" in m:
        fits |= {"y": needed("the weights have label_emb"), "A": exactly(m.shape("label_emb.0.0.weight")[1])}
    else:
        fits["y"] = refused("the weights have no label_emb")
    own = m.prefix
    context = [key for key in m.weights if key.startswith(own) and key.endswith("attn2.to_k.weight")]
    return fits | ({"E": exactly(m.weights[context[0]].shape[1])} if context else {})


def kinds_fit(m: Module) -> Fit:
    """Return the constraint of `control_type` by a ControlNet's weights."""
    kinds = m.shape(TASKS)[0] if LAYERS in m else 0
    says = f"0 to {kinds - 1}, the number of the hint's kind" if kinds else "0: no ControlNet of several kinds"
    return Fit(kinds, says, lambda kind: type(kind) is int and 0 <= kind < max(1, kinds), alone=True)


def _levels(m: Module) -> tuple[list[int], dict[int, int]]:
    """Return the channels of each level, and level -> channels of the levels with transformers."""
    widths, attending = [0], {}
    for i in range(1, m.count("input_blocks")):
        part = m["input_blocks"][i]
        if goes_down(part):
            widths.append(0)
        elif not widths[-1]:
            (widths[-1],) = part.shape("0.out_layers.0.weight")
        if "1.norm" in part:
            (attending[len(widths) - 1],) = part.shape("1.norm.weight")
    level = len(widths) - 1
    for part in (m["middle_block"], *(m["output_blocks"][i] for i in range(m.count("output_blocks")))):
        if "1.norm" in part:
            (attending[level],) = part.shape("1.norm.weight")
        level -= goes_up(part)
    return widths, attending


def _is_linear(m: Module) -> bool:
    """True if the transformers' projections are linear layers."""
    own = m.prefix
    found = next((key for key in m.weights if key.startswith(own) and key.endswith(".proj_in.weight")), None)
    return found is not None and len(m.weights[found].shape) == 2


def _heads(attending: dict[int, int], levels: int, linear: bool) -> Fit:
    """Constrain num_heads: a list has one number per level; one number must divide the channels of all levels with
    transformers, unless proj_in is linear, where it is ignored.
    """
    common = math.gcd(*attending.values())

    def holds(heads) -> bool:
        if isinstance(heads, list):
            return len(heads) == levels and all(width % heads[level] == 0 for level, width in attending.items())
        return linear or not attending or common % heads == 0

    each = ", ".join(str(attending.get(level, "any")) for level in range(levels))
    return Fit(common, f"a divisor of {common}, or one for each level, which has the channels {each}", holds, True)


def _controlnet_beside(own: Mapping[str, Shape], other: Mapping[str, Shape], file: object) -> dict[str, str]:
    return {f"{CONTROL}.{name}": name for name in other}


def _ip_adapter_beside(own: Mapping[str, Shape], other: Mapping[str, Shape], file: object) -> dict[str, str]:
    """Name the keys and values of an IP-Adapter as parts of the cross-attentions that they belong to."""
    names, crossing = {}, cross_attentions(own)
    for i, at in enumerate(crossing):
        wanted = own[f"{at}.to_k.weight"]
        for here, there in zip((_KEYS, _VALUES), key_and_value(i), strict=True):
            found = other.get(there)
            if found != wanted:
                what = "is missing" if found is None else f"has shape {list(found)}"
                raise BadInput(
                    f'{file}: tensor "{there}" {what}; the UNet\'s "{at}" takes {list(wanted)}: '
                    "this IP-Adapter was trained for another model"
                )
            names[f"{at}{here}"] = there
    if key_and_value(len(crossing))[0] in other:
        raise BadInput(
            f"{file}: this IP-Adapter was trained for another model: it has more than the "
            f"{len(crossing)} cross-attentions of the UNet"
        )
    return names


def _unet_fits(m: Module) -> dict[str, Fit]:
    without = {} if CONTROL in m else {"hint": refused("no ControlNet was given; name one with --control-net")}
    if not any(name.endswith(_KEYS) for name in m.weights):
        without["ip_tokens"] = refused("no IP-Adapter was given; name one with --ip-adapter")
    without["control_type"] = kinds_fit(m[CONTROL])
    return shared_fits(m) | without | {"K": exactly(m.shape("out.2.weight")[0])}


COMPONENTS = {
    "unet": Component(
        "unet",
        _run,
        {"x": X, "timesteps": TIMESTEPS, "context": CONTEXT, "y": Y, "hint": HINT, "ip_tokens": IP_TOKENS},
        {"out": "N K H W"},
        {"num_heads": 8, "num_groups": 32, "control_strength": 1.0, "control_type": 0, "ip_scale": 1.0},
        _unet_fits,
        beside={"controlnet": _controlnet_beside, "ip-adapter": _ip_adapter_beside},
    ),
}
