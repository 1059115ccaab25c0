"""Cases of LTX-2's video autoencoder, on tiny models of the same architecture."""

from typing import Any

from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, PICTURE, quiet, tiny_case, video

_ENCODER = "ltx2-vae", "ltx2-vae-encoder"
_DECODER = "ltx2-vae", "ltx2-vae-decoder"
_LTX_VIDEO: dict[str, Any] = {"decoder_mirrors": False}
_LTX23: dict[str, Any] = {"decoder_mirrors": False, "shortcuts": False}
_TIMES = Recipe((BATCH,), exponent=-14, offset=64.0)

CASES = [
    tiny_case(*_ENCODER, "picture", {"x": video(3, 1, 64, 96, **PICTURE)}),
    tiny_case(*_ENCODER, "frames", {"x": video(3, 17, 64, 32, **PICTURE)}),
    quiet(tiny_case(*_ENCODER, "quiet", {"x": video(3, 1, 32, 32, **PICTURE)})),
    tiny_case(*_DECODER, "picture", {"z": video(8, 1, 2, 3)}),
    tiny_case(*_DECODER, "frames", {"z": video(8, 3, 3, 2)}),
    tiny_case("ltx-video-vae", _DECODER[1], "frames", {"z": video(8, 2, 2, 3), "timesteps": _TIMES}, **_LTX_VIDEO),
    tiny_case("ltx23-vae", _DECODER[1], "frames", {"z": video(8, 2, 2, 3)}, **_LTX23),
]  # fmt: skip
