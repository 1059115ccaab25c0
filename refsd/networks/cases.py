"""Build cases of components on tiny models of the same architecture; refsd/models/NAME/cases.py lists them.

Timesteps, and 1000 times the timesteps, are exact in every storage type, so that no engine rounds them; only
"between" has fractions. "quiet" has weights divided by 64, which brings the variances in norms near their eps and
so reveals a wrong eps. "loud" has larger weights, with which some layers' outputs leave float16's range.
"""

import msgspec

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.recipe import Recipe

BATCH = 2
_HALVINGS = 6  # "quiet" divides weights by 2 ** _HALVINGS
WIDTH = 128  # width of a tiny model's context


def latent(channels: int, high: int, wide: int, **recipe) -> Recipe:
    return Recipe((BATCH, channels, high, wide), **recipe)


def video(channels: int, frames: int, high: int, wide: int, **recipe) -> Recipe:
    return Recipe((BATCH, channels, frames, high, wide), **recipe)


def context(tokens: int, width: int = WIDTH) -> Recipe:
    return Recipe((BATCH, tokens, width))


def pooled(width: int) -> Recipe:
    return Recipe((BATCH, width))


def every(value: float) -> Recipe:
    return Recipe((BATCH,), data="constant", offset=value)


def mask(tokens: int, fewer: int, first_whole: bool = False) -> Recipe:
    """Make a mask of ones, then zeros: the last row has `tokens` ones, the row before `fewer` less.

    So the first row's mask for all is another than none.

    first_whole: the reverse, for cases of the published corpus, which do not change
    """
    return Recipe((BATCH, tokens), "i32", data="prefix", exponent=0, n=fewer if first_whole else -fewer)


def token_ids(tokens: int, vocab: int = 1000) -> Recipe:
    return Recipe((BATCH, tokens), "i32", data="token_ids", exponent=0, n=vocab)


def positions(tokens: int) -> Recipe:
    """Make three positions of each token, all different: whole numbers below 64."""
    return Recipe((BATCH, tokens, 3), "i32", data="token_ids", exponent=0, n=64)


def tiny_case(family: str, component: str, label: str, inputs: dict[str, Recipe], type="f32", **params) -> Case:
    model = ModelRecipe(family, type, tiny=True)
    return Case(f"{family}/{component}/{label}", f"model/{component}", inputs, params, model)


def lone(case: Case) -> Case:
    """Prefix a case with lone/: only the reference can compute it, so it must be selected explicitly."""
    return msgspec.structs.replace(case, name=f"lone/{case.name}")


def with_params(case: Case, **params) -> Case:
    return msgspec.structs.replace(case, params=params)


def quiet(case: Case, halvings: int = _HALVINGS) -> Case:
    """Return the case with weights divided by 2 ** halvings; negative for larger weights."""
    assert case.model is not None
    return msgspec.structs.replace(case, model=msgspec.structs.replace(case.model, quiet=halvings))


def denoiser_case(
    family: str,
    component: str,
    label: str,
    x: Recipe,
    t: Recipe,
    tokens: int,
    type="f32",
    width=WIDTH,
    **more: Recipe,
) -> Case:
    """Make a case of a denoiser. t: timesteps; tokens, width: of the context"""
    inputs = {"x": x, "timesteps": t, "context": context(tokens, width), **more}
    return tiny_case(family, component, label, inputs, type)


# Timesteps with fractions: 430..570 of 1000, and the same range for flows as 0.36..0.65.
DRAWN = Recipe((BATCH,), exponent=-11, offset=500.0)
SHARE = Recipe((BATCH,), exponent=-20, offset=0.5)
# Multiples of 1/16, so that 2 x - 1 is exact.
PICTURE = {"data": "integers", "exponent": -3, "offset": 0.5}
