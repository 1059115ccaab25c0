"""Cases of families other than SD 1.x, in shapes that sd-cli can be made to run.

The sides of pictures are multiples of 64 pixels. Flux's text has 256 tokens, Z-Image's any number above that of
its template.
"""

from collections.abc import Mapping

import msgspec

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.recipe import Recipe

_BATCH = 2
# Fractions between 0.36 and 0.65.
_TIMES = Recipe((_BATCH,), exponent=-20, offset=0.5)
_GUIDANCE = Recipe((_BATCH,), data="constant", offset=3.5)
_X, _CONTEXT, _Y = Recipe((_BATCH, 16, 8, 16)), Recipe((_BATCH, 256, 4096)), Recipe((_BATCH, 768))
_FLUX = {"x": _X, "timesteps": _TIMES, "context": _CONTEXT, "y": _Y}
_DEV = {**_FLUX, "guidance": _GUIDANCE}
_CHROMA = {"x": _X, "timesteps": _TIMES, "context": _CONTEXT}
_RADIANCE = _CHROMA | {"x": Recipe((_BATCH, 3, 64, 128))}
# Each row is ones, then zeros: the first row shows all 256 tokens, the second 56.
_MASK = {"context_mask": Recipe((_BATCH, 256), "i32", data="prefix", exponent=0, n=200)}
_FLUX2_DEV = {
    "x": Recipe((_BATCH, 128, 4, 8)),
    "timesteps": _TIMES,
    "context": Recipe((_BATCH, 512, 128)),
    "guidance": _GUIDANCE,
}

_SD3 = {
    "x": Recipe((1, 16, 16, 8)),
    "timesteps": Recipe((1,), exponent=-11, offset=500.0),
    "context": Recipe((1, 154, 4096)),
    "y": Recipe((1, 2048)),
}


def _one(inputs: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Reduce the inputs to a batch of one."""
    return {name: msgspec.structs.replace(r, shape=(1, *r.shape[1:])) for name, r in inputs.items()}


def _channels(n: int) -> Recipe:
    return Recipe((_BATCH, n, 8, 16))


def _ids(tokens: int, vocab: int) -> Recipe:
    return Recipe((1, tokens), "i32", data="token_ids", exponent=0, n=vocab)


def _case(name: str, op: str, family: str, inputs: Mapping[str, Recipe], type="f32") -> Case:
    model = ModelRecipe(family, type, tiny=not name.startswith("full/"))
    return Case(name, f"model/{op}", dict(inputs), model=model)


CASES = [
    _case("flux/dev/256-tokens", "flux", "flux-dev", _DEV),
    _case("flux/dev/256-tokens-q8_0", "flux", "flux-dev", _DEV, "q8_0"),
    _case("flux/dev/1024x1024", "flux", "flux-dev", {**_one(_DEV), "x": Recipe((1, 16, 128, 128))}),
    _case("flux/schnell/256-tokens", "flux", "flux-schnell", _FLUX),
    _case("flux/fill/256-tokens", "flux", "flux-fill", _DEV | {"x": _channels(96)}),
    _case("flux/control/256-tokens", "flux", "flux-control", _DEV | {"x": _channels(32)}),
    _case("flux/kontext/256-tokens", "flux", "flux-dev", _DEV | {"reference": Recipe((_BATCH, 16, 16, 8))}),
    _case("tae/taef1/decoder", "tae-decoder", "taef1", {"z": _X}),
    _case(
        "tae/taef1/encoder", "tae-encoder", "taef1", {"x": Recipe((_BATCH, 3, 64, 128), exponent=-18, offset=0.5)}
    ),
    _case("vae/flux/decoder", "vae-decoder", "flux-vae", {"z": _X}),
    _case("esrgan/x4/odd", "esrgan", "esrgan", {"x": Recipe((_BATCH, 3, 19, 14), exponent=-18, offset=0.5)}),
    _case(
        "flux2/klein/512-tokens",
        "flux2",
        "flux2-klein",
        {"x": Recipe((_BATCH, 128, 4, 8)), "timesteps": _TIMES, "context": Recipe((_BATCH, 512, 128))},
    ),
    _case("full/sd3-medium/154-tokens", "mmdit", "sd3-medium", _SD3, "q8_0"),
    _case("full/sd35-medium/154-tokens", "mmdit", "sd35-medium", _SD3, "q8_0"),
    _case("full/sd35-large/154-tokens", "mmdit", "sd35-large-narrow", _SD3, "q8_0"),
    _case("vae/flux2/decoder", "flux2-vae-decoder", "flux2-vae", {"z": Recipe((_BATCH, 128, 4, 8))}),
    _case("full/flux2-vae/decoder", "flux2-vae-decoder", "flux2-vae", {"z": Recipe((1, 128, 8, 4))}, "f16"),
    _case(
        "full/flux2-vae/encoder",
        "flux2-vae-encoder",
        "flux2-vae",
        {"x": Recipe((1, 3, 64, 128), exponent=-16)},
        "f16",
    ),
    _case(
        "full/flux-dev/256-tokens",
        "flux",
        "flux-dev",
        {**_one(_DEV), "x": Recipe((1, 16, 32, 32))},
        "q4_0",
    ),
    _case(
        "full/zimage/13-tokens",
        "zimage",
        "zimage",
        {
            "x": Recipe((1, 16, 16, 8)),
            "timesteps": Recipe((1,), exponent=-20, offset=0.5),
            "context": Recipe((1, 13, 2560)),
        },
        "q8_0",
    ),
    _case(
        "full/qwen-image/13-tokens",
        "qwen-image",
        "qwen-image-block",
        {
            "x": Recipe((1, 16, 16, 8)),
            "timesteps": Recipe((1,), exponent=-20, offset=0.5),
            "context": Recipe((1, 13, 3584)),
        },
        "q8_0",
    ),
    _case("full/t5xxl/256-tokens", "t5", "t5xxl", {"input_ids": _ids(256, 32128)}, "q8_0"),
    _case("full/chroma/256-tokens", "chroma", "chroma-narrow", _CHROMA),
    _case("full/chroma/masked", "chroma", "chroma-narrow", _CHROMA | _MASK),
    _case("full/chroma/masked-q8_0", "chroma", "chroma-narrow", _CHROMA | _MASK, "q8_0"),
    _case("full/chroma-radiance/256-tokens", "chroma-radiance", "chroma-radiance-narrow", _RADIANCE),
    _case("full/chroma-radiance/masked", "chroma-radiance", "chroma-radiance-narrow", _RADIANCE | _MASK),
    _case("full/chroma-radiance/x0", "chroma-radiance", "chroma-radiance-x0-narrow", _RADIANCE | _MASK),
    _case(
        "flux2/klein/reference",
        "flux2",
        "flux2-klein",
        {
            "x": Recipe((_BATCH, 128, 4, 8)),
            "timesteps": _TIMES,
            "context": Recipe((_BATCH, 512, 128)),
            "reference": Recipe((_BATCH, 128, 8, 4)),
        },
    ),
    _case(
        "flux2/klein/1024x1024",
        "flux2",
        "flux2-klein",
        {**_one({"timesteps": _TIMES, "context": _FLUX2_DEV["context"]}), "x": Recipe((1, 128, 64, 64))},
    ),
    _case("full/flux2-dev/512-tokens", "flux2", "flux2-dev-narrow", _FLUX2_DEV),
    _case(
        "full/flux2-dev/reference",
        "flux2",
        "flux2-dev-narrow",
        _FLUX2_DEV | {"reference": Recipe((_BATCH, 128, 8, 4))},
    ),
]
