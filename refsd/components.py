"""The components that a model can be asked for: their arguments, their outputs, what must fit.

Argument names are those of the original's forward.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refsd.adapters import load as load_adapters
from refsd.golden.arithmetic import Arithmetic
from refsd.golden.errors import BadInput
from refsd.models.clip import ACTIVATIONS, clip_text
from refsd.models.flux import double_stream_block, single_stream_block
from refsd.models.unet import unet
from refsd.models.vae import decode, encode
from refsd.module import Kept, Module
from refsd.weights.adapters import AdapterFile
from refsd.weights.checkpoint import Checkpoint
from refsd.weights.stored import shown

VALUE = "float, rounded to the storage dtype"
POSITION = "float, never rounded"
IDS = "integer"


class Argument(NamedTuple):
    """
    shape: letters, each one size throughout a call: "N C H W"
    kind:  VALUE, POSITION or IDS
    what:  a few words, with the range
    """

    shape: str
    kind: str
    what: str


class Fit(NamedTuple):
    """What the weights demand of a size."""

    n: int
    says: str
    holds: Callable[[int], bool]


def exactly(n: int) -> Fit:
    return Fit(n, f"{n}", lambda size: size == n)


def multiple_of(n: int) -> Fit:
    return Fit(n, f"a multiple of {n}", lambda size: size % n == 0)


def at_least(n: int) -> Fit:
    return Fit(n, f"at least {n}", lambda size: size >= n)


def at_most(n: int) -> Fit:
    return Fit(n, f"at most {n}", lambda size: size <= n)


def divisor_of(n: int) -> Fit:
    return Fit(n, f"a divisor of {n}", lambda size: n % size == 0)


class Component(NamedTuple):
    """
    part:      the component of a checkpoint that holds the weights; None: a case brings them
    run:       the model's function
    arguments: name -> Argument, in the function's order
    outputs:   name -> shape, in the function's order
    params:    name -> default
    fits:      letter or param -> Fit, read from the weights' shapes; "V" bounds the ids
    """

    part: str | None
    run: Callable[..., Any]
    arguments: Mapping[str, Argument]
    outputs: Mapping[str, str]
    params: Mapping[str, Any]
    fits: Callable[[Module], Mapping[str, Fit]]


def _unet_fits(m: Module) -> dict[str, Fit]:
    downsamples = sum("0.op" in m["input_blocks"][i] for i in range(m.count("input_blocks")))
    channels, C, _, _ = m.shape("input_blocks.0.0.weight")
    fits = {"C": exactly(C), "num_heads": divisor_of(channels), "num_groups": divisor_of(channels)}
    fits["H"] = fits["W"] = multiple_of(2**downsamples)
    context = [key for key in m.weights if key.endswith("attn2.to_k.weight")]
    return fits | ({"E": exactly(m.weights[context[0]].shape[1])} if context else {})


def _clip_fits(m: Module) -> dict[str, Fit]:
    positions, D = m.shape("text_model.embeddings.position_embedding.weight")
    return {
        "L": at_most(positions),
        "V": exactly(m.shape("text_model.embeddings.token_embedding.weight")[0]),
        "num_heads": divisor_of(D),
        "clip_skip": at_most(m.count("text_model.encoder.layers")),
    }


def _encoder_fits(m: Module) -> dict[str, Fit]:
    channels, C, _, _ = m.shape("encoder.conv_in.weight")
    fits = {"C": exactly(C), "num_groups": divisor_of(channels)}
    fits["H"] = fits["W"] = at_least(2 ** (m.count("encoder.down") - 1))
    return fits


def _decoder_fits(m: Module) -> dict[str, Fit]:
    channels = m.shape("decoder.norm_out.weight")[0]
    return {"Z": exactly(m.shape("decoder.conv_in.weight")[1]), "num_groups": divisor_of(channels)}


def _flux_fits(qkv: str, scale: str) -> Callable[[Module], dict[str, Fit]]:
    def fits(m: Module) -> dict[str, Fit]:
        D, head_dim = m.shape(f"{qkv}.weight")[1], m.shape(scale)[0]
        return {"D": exactly(D), "P": exactly(head_dim // 2), "num_heads": exactly(D // head_dim)}

    return fits


COMPONENTS: dict[str, Component] = {
    "unet": Component(
        "unet",
        unet,
        {
            "x": Argument("N C H W", VALUE, "noisy latent, scaled as the sampler scales it"),
            "timesteps": Argument("N", POSITION, "0..999, fractions allowed"),
            "context": Argument("N J E", VALUE, "hidden states of the text encoder"),
        },
        {"out": "N C H W"},
        {"num_heads": 8, "num_groups": 32},
        _unet_fits,
    ),
    "clip": Component(
        "clip",
        clip_text,
        {"input_ids": Argument("N L", IDS, "token ids, begun and ended")},
        {"last_hidden_state": "N L D", "pooled": "N D"},
        {"num_heads": 12, "hidden_act": "quick_gelu", "clip_skip": 1, "eos": 49407},
        _clip_fits,
    ),
    "vae-encoder": Component(
        "vae",
        encode,
        {"x": Argument("N C H W", VALUE, "picture, -1..1")},
        {"mean": "N Z H/8 W/8", "logvar": "N Z H/8 W/8"},
        {"num_groups": 32},
        _encoder_fits,
    ),
    "vae-decoder": Component(
        "vae",
        decode,
        {"z": Argument("N Z H W", VALUE, "latent, divided by 0.18215")},
        {"out": "N C 8H 8W"},
        {"num_groups": 32},
        _decoder_fits,
    ),
    "flux-double": Component(
        None,
        double_stream_block,
        {
            "img": Argument("N L D", VALUE, "picture tokens"),
            "txt": Argument("N J D", VALUE, "text tokens"),
            "vec": Argument("N D", VALUE, "conditioning"),
            "angle": Argument("N J+L P", POSITION, "RoPE angle of each pair of channels, radians; text first"),
        },
        {"img": "N L D", "txt": "N J D"},
        {"num_heads": 24},
        _flux_fits("img_attn.qkv", "img_attn.norm.query_norm.scale"),
    ),
    "flux-single": Component(
        None,
        single_stream_block,
        {
            "x": Argument("N L D", VALUE, "text and picture tokens"),
            "vec": Argument("N D", VALUE, "conditioning"),
            "angle": Argument("N L P", POSITION, "RoPE angle of each pair of channels, radians"),
        },
        {"out": "N L D"},
        {"num_heads": 24},
        _flux_fits("linear1", "norm.query_norm.scale"),
    ),
}


def load(
    checkpoint: Checkpoint,
    name: str,
    arithmetic: Arithmetic,
    kept: Kept | None = None,
    loras: Sequence[tuple[AdapterFile, float]] = (),
) -> tuple[Module, dict[str, Any]]:
    """A component's weights as a Module, and the params that its config sets. Raises BadInput if not there."""
    component = COMPONENTS[name]
    held = checkpoint.components.get(component.part or "")
    if held is None:
        there = ", ".join(checkpoint.components)
        raise BadInput(f"{checkpoint.path}: {name} needs {component.part or 'a case'}; the file holds {there}")
    params = {param: held.config[param] for param in component.params if param in held.config}
    adapters = load_adapters(loras, component.part or "", held.weights, arithmetic)
    return Module(held.weights, arithmetic, kept=kept, adapters=adapters), params


def forward(
    name: str,
    m: Module,
    inputs: Mapping[str, np.ndarray],
    params: Mapping[str, Any] | None = None,
    source: str = "inputs",
) -> dict[str, np.ndarray]:
    """Run a component once.

    inputs: argument name -> array of any float dtype, or integers where ids are asked for
    source: what an error calls the place that the inputs come from
    -> output name -> array in the storage dtype

    Raises BadInput for inputs or params that are missing, unknown, misshapen or not finite.
    """
    component = COMPONENTS[name]
    check(name, m, inputs, params or {}, source)
    arguments = [_admit(m, inputs[argument], kind) for argument, (_, kind, _) in component.arguments.items()]
    y = component.run(m, *arguments, **{**component.params, **(params or {})})
    parts = y if isinstance(y, tuple) else (y,)
    return dict(zip(component.outputs, parts, strict=True))


def _admit(m: Module, x: np.ndarray, kind: str) -> np.ndarray:
    if kind is IDS:
        return np.asarray(x, np.int64)
    return m.store(x) if kind is VALUE else np.asarray(x, m.arithmetic.numerics.compute_dtype)


def check(
    name: str, m: Module, inputs: Mapping[str, np.ndarray], params: Mapping[str, Any], source: str = "inputs"
) -> None:
    """Raises BadInput, in one line, unless `forward` can take these inputs and params."""
    component = COMPONENTS[name]
    expected = {
        argument: f"[{shape.replace(' ', ', ')}]" for argument, (shape, _, _) in component.arguments.items()
    }
    what = ", ".join(f"{argument} {shape}" for argument, shape in expected.items())
    missing, extra = expected.keys() - inputs.keys(), inputs.keys() - expected.keys()
    if missing or extra:
        found = ", ".join(shown(name).strip('"') for name in sorted(inputs)[:10]) or "nothing"
        raise BadInput(f"{source}: {name} takes {what}; found {found}: name the tensors so")
    fits = component.fits(m)
    for param, value in params.items():
        if param not in component.params:
            raise BadInput(f"{name} has no param {param}; it has {', '.join(component.params)}")
        default = component.params[param]
        if type(value) is not type(default):
            raise BadInput(f"{name}: param {param} is {str(value)[:40]!r}, expected something like {default!r}")
        if isinstance(value, int) and (value < 1 or (param in fits and not fits[param].holds(value))):
            says = fits[param].says if param in fits else "at least 1"
            raise BadInput(f"{name}: param {param} is {value}, the model takes {says}")
    if params.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise BadInput(
            f"{name}: param hidden_act is {params['hidden_act'][:40]!r}; expected {' or '.join(ACTIVATIONS)}"
        )
    sizes: dict[str, int] = {}
    for argument, (shape, kind, _) in component.arguments.items():
        x = np.asarray(inputs[argument])
        at = f"{source}: tensor {argument}"
        letters = shape.split()
        if len(letters) != x.ndim or 0 in x.shape:
            raise BadInput(f"{at} has shape {list(x.shape)}, expected {expected[argument]}: reshape it")
        for letter, size in zip(letters, x.shape, strict=True):
            _fit(f"{at} has shape {list(x.shape)}, expected {expected[argument]}", letter, size, sizes, fits)
        _check_values(at, x, kind, fits)


def _fit(at: str, letter: str, size: int, sizes: dict[str, int], fits: Mapping[str, Fit]) -> None:
    known = sum(sizes[part] for part in letter.split("+")) if "+" in letter else sizes.setdefault(letter, size)
    if size != known:
        raise BadInput(f"{at}: {letter} is {size} here and {known} in another tensor")
    if letter in fits and not fits[letter].holds(size):
        raise BadInput(f"{at}: {letter} is {size}, the model takes {fits[letter].says}")


def _check_values(at: str, x: np.ndarray, kind: str, fits: Mapping[str, Fit]) -> None:
    integers = x.dtype.kind in "iu"
    if kind is IDS:
        if not integers:
            raise BadInput(f"{at} is {x.dtype}, expected int64 or int32: store token ids as integers")
        if x.min() < 0 or x.max() >= fits["V"].n:
            raise BadInput(f"{at} holds ids {x.min()}..{x.max()}, the model knows 0..{fits['V'].n - 1}")
    elif not integers and not np.isfinite(np.asarray(x, np.float64)).all():
        raise BadInput(f"{at} holds NaN or infinity: expected finite numbers")


def components_help() -> str:
    """The tensors of every component that a checkpoint holds, a paragraph each."""
    paragraphs = []
    for name, component in COMPONENTS.items():
        if component.part is not None:
            takes = [
                f"{argument} [{shape.replace(' ', ', ')}] ({kind.split(',')[0]}; {what})"
                for argument, (shape, kind, what) in component.arguments.items()
            ]
            gives = [f"{output} [{shape.replace(' ', ', ')}]" for output, shape in component.outputs.items()]
            paragraphs.append(f"{name}: {', '.join(takes)} -> {', '.join(gives)}")
    return "\n\n".join(paragraphs)
