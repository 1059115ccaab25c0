"""The components of Qwen-Image: its transformer as text to image and Edit call it, and as Layered does."""

from collections.abc import Mapping

from refsd.models.flux2.component import REFERENCES
from refsd.models.qwen_image import AXES_DIM, qwen_image, qwen_image_layered
from refsd.models.qwen_image_controlnet import EMBEDDER, Control
from refsd.module import Module
from refsd.networks.component import MASK, POSITION, VALUE, Argument, Component, Stack
from refsd.networks.dimensions import Shape
from refsd.networks.fits import Fit, exactly, multiple_of, refused, rotary_axes
from refsd.numerics.errors import BadInput

PATCH = 2
CONTROL = "control_model"
_NORMS = ("transformer_blocks.0.attn.norm_q.weight", "transformer_blocks.0.attn.norm_added_q.weight")


def _run(m: Module, zero_cond_t=False, hint=None, hint_context=None, hint_mask=None, control_strength=1.0, **given):
    """Run Qwen-Image; with a hint, its ControlNet too, whose weights are under the prefix CONTROL."""
    references = [given.pop(name) for name in REFERENCES if name in given]
    control = None
    if hint is not None:
        if references:
            raise BadInput("a ControlNet's hint and pictures to edit do not go together: leave one of them out")
        text = given["context"], given.get("context_mask")
        text = text if hint_context is None else (hint_context, hint_mask)
        control = Control(m[CONTROL], hint, *text, control_strength)
    return qwen_image(m, **given, reference=references, zero_cond_t=zero_cond_t, control=control)


def _fits(m: Module) -> dict[str, Fit]:
    sides = {letter for shape in REFERENCES.values() for letter in shape.split()[2:]}
    fits = _layered_fits(m) | dict.fromkeys(sides, multiple_of(PATCH))
    if CONTROL not in m:
        return fits | dict.fromkeys(_HINT, refused("no ControlNet was given; name one with --control-net"))
    return fits | {"G": exactly(m[CONTROL].shape(f"{EMBEDDER}.weight")[1] // PATCH**2)}


def _layered_fits(m: Module) -> dict[str, Fit]:
    sizes = {"axes_dim": rotary_axes(m, "img_in.weight", _NORMS)}
    sizes |= {"C": exactly(m.shape("img_in.weight")[1] // PATCH**2), "E": exactly(m.shape("txt_in.weight")[1])}
    return sizes | dict.fromkeys("HW", multiple_of(PATCH))


def _controlnet_beside(own: Mapping[str, Shape], other: Mapping[str, Shape], file: object) -> dict[str, str]:
    for name in ("img_in.weight", "txt_in.weight"):
        if other.get(name) != own[name]:
            raise BadInput(
                f'{file}: tensor "{name}" has shape {list(other.get(name, ()))}; Qwen-Image has {list(own[name])}: '
                "this ControlNet was trained for another model"
            )
    return {f"{CONTROL}.{name}": name for name in other}


def _picture(name: str) -> str:
    return "the latent of a picture to edit" if name == "reference" else "of another, in their order"


_TEXT = {
    "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
    "context": Argument("N J E", VALUE, "Qwen2.5-VL's last hidden states"),
    "context_mask": Argument("N J", MASK, "0 for tokens that the attention ignores", optional=True),
}
_HINT = {
    "hint": Argument("N G H W", VALUE, "the control picture's latent, for a ControlNet", optional=True),
    "hint_context": Argument(
        "N B E", VALUE, "the words that the ControlNet sees; left out: context", optional=True
    ),
    "hint_mask": Argument("N B", MASK, "0 for tokens of hint_context that the attention ignores", optional=True),
}
COMPONENTS = {
    "qwen-image": Component(
        "qwen-image",
        _run,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            **_TEXT,
            **{name: Argument(shape, VALUE, _picture(name), optional=True) for name, shape in REFERENCES.items()},
            **_HINT,
        },
        {"out": "N C H W"},
        {"zero_cond_t": False, "axes_dim": [*AXES_DIM], "middle_at_0": False, "control_strength": 1.0},
        _fits,
        beside={"qwen-image-controlnet": _controlnet_beside},
        stack=Stack(("transformer_blocks",), picture=1),
    ),
    "qwen-image-layered": Component(
        "qwen-image-layered",
        qwen_image_layered,
        {
            "x": Argument("N T C H W", VALUE, "noisy latents: the whole picture, then its layers"),
            **_TEXT,
            "condition": Argument("N C H W", VALUE, "the latent of the picture to take apart"),
        },
        {"out": "N T C H W"},
        {"axes_dim": [*AXES_DIM]},
        _layered_fits,
    ),
}
