"""Cases of MiniMax-H3's video autoencoder, on tiny models of the same architecture, with tiles of 32 pixels."""

from typing import Any

from refsd.networks.cases import PICTURE, quiet, tiny_case, video

_TILES: dict[str, Any] = {"tile": 32, "overlap": 16}
_ENCODER = "minimax-h3-vae", "minimax-h3-vae-encoder"
_DECODER = "minimax-h3-vae", "minimax-h3-vae-decoder"

CASES = [
    tiny_case(*_ENCODER, "picture", {"x": video(3, 1, 80, 48, **PICTURE)}, **_TILES),
    tiny_case(*_ENCODER, "frames", {"x": video(3, 3, 32, 48, **PICTURE)}),
    quiet(tiny_case(*_ENCODER, "quiet", {"x": video(3, 1, 32, 32, **PICTURE)})),
    tiny_case(*_DECODER, "picture", {"z": video(24, 1, 2, 3)}),
    tiny_case(*_DECODER, "frames", {"z": video(24, 8, 3, 5)}, **_TILES),
]  # fmt: skip
