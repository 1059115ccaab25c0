"""FLUX.2's autoencoder: SD's, with 32 channels, whose latents are packed 2x2 and normalised by its own statistics.

black-forest-labs/flux2, autoencoder.py. `bn` holds BatchNorm's running statistics from training; it has no weight
and no bias. The networks are in vae.py. stable-diffusion.cpp hard-codes the statistics, to four decimals.
"""

from refsd.kernels.batch_norm import batch_denorm, batch_norm
from refsd.models import vae
from refsd.module import Module, block
from refsd.numerics.errors import BadInput

EPS = 1e-4


@block
def encode(m: Module, x, num_groups=32, eps=EPS, squares_first=False):
    """Encode a picture to the mean of its posterior, packed and normalised, without sampling.

    x:       [N, 3, H, W], -1..1, H and W multiples of 16
    eps:     of the latents' normalisation; Ernie-Image's is 1e-5
    squares_first: True if the places in a square are the outer of a pixel's channels, as in Ideogram 4
    -> mean: [N, 4Z, H/16, W/16], input of flux2.py
    """
    mean, _ = vae.encode(m, x, num_groups)
    return to_denoiser(m, mean, eps, squares_first)


@block
def decode(m: Module, z, num_groups=32, eps=EPS, squares_first=False):
    """Decode a latent to a picture.

    z:      [N, 4Z, H, W], in flux2.py's scale
    eps, squares_first: as in `encode`
    -> out: [N, 3, 16H, 16W], about -1..1, not clipped
    """
    return vae.decode(m, to_vae(m, z, eps, squares_first), num_groups)


def to_denoiser(m: Module, z, eps=EPS, squares_first=False):
    """Pack, then normalise each channel. z [N, Z, 2H, 2W] -> [N, 4Z, H, W]

    Raises BadInput if a side of z is odd.
    """
    if z.shape[2] % 2 or z.shape[3] % 2:
        raise BadInput(f"a latent of {z.shape[2]} x {z.shape[3]} has no whole 2x2 squares; give both sides even")
    packed = squares_outside(pack(z)) if squares_first else pack(z)
    return m.apply(batch_norm, packed, *statistics(m), eps=eps)


def to_vae(m: Module, x, eps=EPS, squares_first=False):
    """Undo `to_denoiser`. x [N, 4Z, H, W] -> z [N, Z, 2H, 2W]"""
    packed = m.apply(batch_denorm, x, *statistics(m), eps=eps)
    return unpack(squares_inside(packed) if squares_first else packed)


def statistics(m: Module):
    """Return mean and variance of each channel, [4Z] each. Raises BadInput for a variance below 0."""
    mean, var = m.weight("bn.running_mean"), m.weight("bn.running_var")
    if var.min() < 0:
        raise BadInput(
            f'"{m.prefix}bn.running_var" holds {var.min():.3g}: a variance is 0 or more; the file is damaged'
        )
    return mean, var


def pack(z):
    """Turn each 2x2 square into a pixel with channels (c, row, column). [N, Z, 2H, 2W] -> [N, 4Z, H, W]"""
    N, Z, H, W = z.shape
    return z.reshape(N, Z, H // 2, 2, W // 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(N, 4 * Z, H // 2, W // 2)


def unpack(x):
    """Undo `pack`. [N, 4Z, H, W] -> [N, Z, 2H, 2W]"""
    N, C, H, W = x.shape
    return x.reshape(N, C // 4, 2, 2, H, W).transpose(0, 1, 4, 2, 5, 3).reshape(N, C // 4, 2 * H, 2 * W)


def squares_outside(x):
    """Order channels (c, row, column) as (row, column, c). [N, 4Z, H, W] -> the same"""
    N, C, H, W = x.shape
    return x.reshape(N, C // 4, 4, H, W).swapaxes(1, 2).reshape(x.shape)


def squares_inside(x):
    """Undo `squares_outside`. [N, 4Z, H, W] -> the same"""
    N, C, H, W = x.shape
    return x.reshape(N, 4, C // 4, H, W).swapaxes(1, 2).reshape(x.shape)
