"""Pixels into channels and back."""


def pixel_unshuffle(x, factor):
    """Make a channel of each place in a block of factor x factor pixels.

        y[n, (c p + i) p + j, h, w] = x[n, c, h p + i, w p + j],  p = factor

    x:    [N, C, H*p, W*p]
    -> y: [N, C*p*p, H, W], dtype of x

    So FLUX.2 packs its latents: channel 4c + 2i + j.
    Source: Shi et al. 2016; torch.nn.functional.pixel_unshuffle.
    """
    N, C, H, W = x.shape
    p = factor
    y = x.reshape(N, C, H // p, p, W // p, p).transpose(0, 1, 3, 5, 2, 4)
    return y.reshape(N, C * p * p, H // p, W // p)


def pixel_shuffle(x, factor):
    """Undo `pixel_unshuffle`.

        y[n, c, h p + i, w p + j] = x[n, (c p + i) p + j, h, w],  p = factor

    x:    [N, C*p*p, H, W]
    -> y: [N, C, H*p, W*p], dtype of x

    Source: Shi et al. 2016, eq. 4; torch.nn.functional.pixel_shuffle.
    """
    N, channels, H, W = x.shape
    p = factor
    C = channels // (p * p)
    y = x.reshape(N, C, p, p, H, W).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(N, C, H * p, W * p)
