"""Cases of Krea 2, on tiny models of the same architecture."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, SHARE, WIDTH, every, latent, mask, quiet, tiny_case

_STATES = 4  # hidden states of a token in the tiny model


def _case(label: str, x: Recipe, t: Recipe, tokens: int, **more) -> Case:
    """Make a case whose tokens have several hidden states each."""
    inputs = {"x": x, "timesteps": t, "context": Recipe((BATCH, tokens, _STATES, WIDTH)), **more}
    return tiny_case("krea2", "krea2", label, inputs)


CASES = [
    _case("whole", latent(16, 6, 10), SHARE, 7),
    _case("masked", latent(16, 8, 4), every(0.25), 13, context_mask=mask(13, 8)),
    quiet(_case("quiet", latent(16, 4, 8), every(0.75), 5)),
]  # fmt: skip
