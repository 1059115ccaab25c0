"""Cases of SD 2, SDXL, their variants and ControlNet, at full size and in shapes that sd-cli can be made to run."""

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.recipe import Recipe

_TOKENS = 77
_PICTURE = {"exponent": -18, "offset": 0.5}


def _unet(family: str, context_dim: int, type="f16", channels=4, batch=2, component="unet", **more: Recipe) -> Case:
    """Make a UNet case, with fractional timesteps between 430 and 570."""
    inputs = {
        "x": Recipe((batch, channels, 8, 16)),
        "timesteps": Recipe((batch,), exponent=-11, offset=500.0),
        "context": Recipe((batch, _TOKENS, context_dim)),
        **more,
    }
    return Case(f"full/{family}/{component}", f"model/{component}", inputs, model=ModelRecipe(family, type))


def _clip(family: str, component: str, type: str, **params) -> Case:
    """Make a CLIP case with a vocabulary of few ids, so that EOS occurs in the middle of a row."""
    ids = Recipe((1, _TOKENS), "i32", data="token_ids", exponent=0, n=40, seed=1)
    params = {"eos": 7, "clip_skip": 2, **params}
    return Case(
        f"full/{family}/{component}", f"model/{component}", {"input_ids": ids}, params, ModelRecipe(family, type)
    )


def _vae(family: str, part: str, argument: str, x: Recipe, type: str) -> Case:
    component = f"vae-{part}"
    return Case(f"full/{family}/{component}", f"model/{component}", {argument: x}, model=ModelRecipe(family, type))


_LABEL = {"batch": 1, "y": Recipe((1, 2816))}
_HINT = {"batch": 1, "hint": Recipe((1, 3, 64, 128), **_PICTURE)}

CASES = [
    _unet("sd21", 1024),
    _clip("sd21", "clip", "f16"),
    _vae("sd21", "decoder", "z", Recipe((1, 4, 8, 16)), "f16"),
    _unet("sdxl", 2048, "q8_0", **_LABEL),
    _clip("sdxl", "clip_g", "q8_0", final_norm=False),
    _vae("sdxl", "encoder", "x", Recipe((1, 3, 64, 128), exponent=-16), "q8_0"),
    _vae("sdxl", "decoder", "z", Recipe((1, 4, 8, 16)), "q8_0"),
    _unet("sdxl-inpaint", 2048, "q8_0", channels=9, **_LABEL),
    _unet("ssd-1b", 2048, "q8_0", **_LABEL),
    _unet("vega", 2048, **_LABEL),
    _unet("sd15-inpaint", 768, channels=9),
    _unet("pix2pix", 768, channels=8),
    _unet("tiny-sd", 768),
    _unet("sdxs-512", 768),
    _unet("sdxs-09", 1024),
    _unet("sd15-control", 768, component="controlnet", **_HINT),
    _unet("sd15-control", 768, **_HINT),
]
