"""Cases of FLUX.1 Redux, on tiny models of the same architecture."""

from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, tiny_case

CASES = [
    tiny_case("redux", "redux", "odd", {"x": Recipe((BATCH, 7, 64))}),
]  # fmt: skip
