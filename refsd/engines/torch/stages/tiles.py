"""Tiled decoding and encoding by diffusers' AutoencoderKL, with the case's formula for a decoder."""

from collections.abc import Set
from typing import Any

from refsd.engines.torch.stages.torch_stage import Params, TorchStage


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    square = p["size"][0] == p["size"][1] and not p["wraps"]
    if p["engine"] != "diffusers":
        return f"diffusers does not cut tiles as {p['engine']} does"
    return None if square else "diffusers cuts square tiles that do not wrap"


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import AutoencoderKL

    corners = []

    class Decoder(torch.nn.Module):
        """Subtracts each channel's mean over the tile, and enlarges `up` times; to encode, takes means instead."""

        def forward(self, z):
            y = torch.nn.functional.avg_pool2d(z - z.mean(dim=(2, 3), keepdim=True), p["down"])
            return y.repeat_interleave(p["up"], 2).repeat_interleave(p["up"], 3)

    class Noting(Decoder):
        """Records each tile's place, which it reads from z: there each pixel holds its own index."""

        def forward(self, z):
            corners.append((*divmod(int(z[0, 0, 0, 0]), width), *z.shape[2:]))
            return super().forward(z)

    z = t["z"]
    height, width = z.shape[2:]
    vae = AutoencoderKL(latent_channels=z.shape[1], use_post_quant_conv=False, use_quant_conv=False)
    encoded, whole = p["down"] > 1, p["size"][0] * max(p["up"], p["down"])
    vae.tile_latent_min_size, vae.tile_sample_min_size = p["size"][0], whole
    vae.tile_overlap_factor = p["overlap"]
    pictures = []
    counted = torch.arange(height * width, dtype=z.dtype).reshape(1, 1, height, width)
    for decoder, latent in ((Noting(), counted), (Decoder(), z)):
        vae.decoder = vae.encoder = decoder
        pictures.append(vae._tiled_encode(latent) if encoded else vae.tiled_decode(latent).sample)
    return {"tiles": torch.tensor(corners), "picture": pictures[1]}


STAGES = dict.fromkeys(("stage/tiles", "stage/encoded_tiles"), TorchStage("diffusers", _refuses, _run))
