"""Cases of IP-Adapter, on tiny models of the same architecture."""

from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, quiet, tiny_case

CASES = [
    tiny_case("ip-adapter", "ip-adapter", "embedding", {"embeds": Recipe((BATCH, 64))}),
    tiny_case("ip-adapter-plus", "ip-adapter", "states", {"penultimate": Recipe((BATCH, 17, 64))}),
    quiet(tiny_case("ip-adapter-plus", "ip-adapter", "quiet", {"penultimate": Recipe((BATCH, 9, 64))})),
    tiny_case("ip-adapter-full-face", "ip-adapter", "states", {"penultimate": Recipe((BATCH, 9, 64))}),
]  # fmt: skip
