"""Cases of SD 1.x's components: on a tiny model of the same architecture, and at full size under full/."""

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.recipe import Recipe

_TINY = ModelRecipe("sd15", "f32", tiny=True)
_FULL = ModelRecipe("sd15", "f16")
_BATCH = 2


def _timesteps(t: float) -> Recipe:
    return Recipe((_BATCH,), data="constant", offset=t)


def _unet(label: str, model: ModelRecipe, x: Recipe, timesteps: Recipe, tokens=77) -> Case:
    """Make a UNet case. timesteps: constant, or drawn: then they differ over the batch and have fractions"""
    width = 128 if model.tiny else 768
    inputs = {"x": x, "timesteps": timesteps, "context": Recipe((_BATCH, tokens, width))}
    return Case(f"{_place(model)}/unet/{label}", "model/unet", inputs, model=model)


def _clip(label: str, model: ModelRecipe, input_ids: Recipe, **params) -> Case:
    params |= {"num_heads": 2} if model.tiny else {}
    return Case(f"{_place(model)}/clip/{label}", "model/clip", {"input_ids": input_ids}, params, model)


def _ids(tokens=77, n=49408) -> Recipe:
    return Recipe((_BATCH, tokens), "i32", data="token_ids", exponent=0, n=n)


def _vae(part: str, label: str, model: ModelRecipe, x: Recipe) -> Case:
    argument = {"encoder": "x", "decoder": "z"}[part]
    return Case(f"{_place(model)}/vae-{part}/{label}", f"model/vae-{part}", {argument: x}, model=model)


def _place(model: ModelRecipe) -> str:
    return "sd15" if model.tiny else "full/sd15"


# Timesteps with fractions between 430 and 570.
_DRAWN = Recipe((_BATCH,), exponent=-11, offset=500.0)
_PADDING = Recipe((_BATCH, 77), "i32", data="constant", exponent=0, offset=49407)

CASES = [
    _unet("first-step", _TINY, Recipe((_BATCH, 4, 16, 8)), _timesteps(999)),
    _unet("last-step", _TINY, Recipe((_BATCH, 4, 8, 16)), _timesteps(0)),
    _unet("between", _TINY, Recipe((_BATCH, 4, 8, 24)), _DRAWN),
    _unet("long-prompt", _TINY, Recipe((_BATCH, 4, 8, 8)), _DRAWN, tokens=154),
    # The signal is so small that a group's variance is that of the biases, which makes group_norm's eps matter.
    _unet("quiet", _TINY, Recipe((_BATCH, 4, 16, 8), exponent=-30), _timesteps(1)),
    _clip("long", _TINY, _ids()),
    _clip("short", _TINY, _ids(9)),
    _clip("padding", _TINY, _PADDING),
    # A vocabulary of few ids, so that the EOS id occurs in the middle of a row.
    _clip("ended", _TINY, _ids(n=40), eos=7),
    _vae("encoder", "tall", _TINY, Recipe((_BATCH, 3, 64, 32), exponent=-16)),
    _vae("encoder", "black", _TINY, Recipe((_BATCH, 3, 16, 24), data="constant", offset=-1.0)),
    _vae("decoder", "wide", _TINY, Recipe((_BATCH, 4, 4, 9))),
    _vae("decoder", "outliers", _TINY, Recipe((_BATCH, 4, 6, 5), data="outliers", exponent=-18)),
    _unet("first-step", _FULL, Recipe((_BATCH, 4, 16, 24)), _timesteps(999)),
    _unet("between", _FULL, Recipe((_BATCH, 4, 24, 16)), _DRAWN),
    _unet("quiet", _FULL, Recipe((_BATCH, 4, 16, 24), exponent=-30), _timesteps(1)),
    _clip("long", _FULL, _ids()),
    _clip("padding", _FULL, _PADDING),
    _vae("encoder", "wide", _FULL, Recipe((_BATCH, 3, 64, 128), exponent=-16)),
    _vae("decoder", "wide", _FULL, Recipe((_BATCH, 4, 8, 16))),
]
