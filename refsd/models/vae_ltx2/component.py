"""The components of LTX-2's video autoencoder."""

from refsd.models.vae_ltx2 import PATCH, STATISTICS, STEPS, decode, encode, width
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, multiple_of, needed, refused
from refsd.numerics.errors import BadInput


def _step(m: Module, wide: int, narrow: int, whole: bool) -> tuple[int, int]:
    """Return by how much a step changes frames and sides. Raises BadInput unless refsd computes such a step.

    wide, narrow: channels of one, and of each value that becomes its channels
    whole: True if the shortcut has equal groups
    """
    cells = wide // narrow
    if wide % narrow or cells not in STEPS or not whole:
        raise BadInput(
            f'"{m.prefix}conv.conv.weight" has {wide} channels for {narrow}: refsd computes steps of 2 frames, '
            "of 2x2 pixels, or of both, whose shortcut has equal groups; the file is damaged"
        )
    return STEPS[cells]


def _levels(m: Module, name: str) -> int:
    there = m[name].count()
    if there % 2 == 0:
        raise BadInput(
            f'"{m.prefix}{name}" are {there}: residual blocks at both ends expected; the file is damaged'
        )
    return there


def _encoder_fits(m: Module):
    frames, side = 1, PATCH
    levels = m["encoder.down_blocks"]
    for i in range(2, _levels(m, "encoder.down_blocks"), 2):
        rows, inputs = levels[i - 1].shape("conv.conv.weight")[:2]
        wide = width(levels[i])
        of_frames, of_side = _step(levels[i - 1], wide, rows, inputs * (wide // rows) % wide == 0)
        frames, side = frames * of_frames, side * of_side
    sides = multiple_of(side)
    return {"C": exactly(3), "F": _frames(frames), "H": sides, "W": sides}


def _frames(group: int) -> Fit:
    return Fit(group, f"1 more than a multiple of {group}", lambda n: n % group == 1 % group)


def _decoder_fits(m: Module):
    levels = m["decoder.up_blocks"]
    for i in range(2, _levels(m, "decoder.up_blocks"), 2):
        rows, inputs = levels[i - 1].shape("conv.conv.weight")[:2]
        outputs = width(levels[i])
        whole = inputs * outputs % rows == 0 and outputs % max(1, inputs * outputs // rows) == 0
        _step(levels[i - 1], rows, outputs, whole)
    timed = "last_time_embedder" in m["decoder"]
    return {
        "Z": exactly(m.shape(STATISTICS[0])[0]),
        "timesteps": needed("these weights embed the latent's noise level")
        if timed
        else refused("these weights do not embed the latent's noise level"),
    }


COMPONENTS = {
    "ltx2-vae-encoder": Component(
        "ltx2-vae",
        encode,
        {"x": Argument("N C F H W", VALUE, "picture or video, -1..1; a picture has F = 1, a video F = 1 + 8f")},
        {"mean": "N Z 1+f H/32 W/32", "logvar": "N Z 1+f H/32 W/32"},
        {"encoder_causal": True, "encoder_mirrors": False},
        _encoder_fits,
    ),
    "ltx2-vae-decoder": Component(
        "ltx2-vae",
        decode,
        {
            "z": Argument("N Z F H W", VALUE, "latent, normalised, as the denoiser has it; a picture has F = 1"),
            "timesteps": Argument("N", POSITION, "the latent's noise level, 0..1", optional=True),
        },
        {"out": "N C 8F-7 32H 32W"},
        {"decoder_causal": False, "decoder_mirrors": True, "shortcuts": True},
        _decoder_fits,
    ),
}
