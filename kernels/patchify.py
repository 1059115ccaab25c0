"""Pictures into tokens and back: a token is a patch of p x p pixels.

Models differ in the order of a token's channels. Channel outermost, (C, p, p): FLUX.1 and Chroma ("c (h ph) (w pw)
-> (h w) (c ph pw)"), a patch-embedding convolution's filter, Radiance's patches. Channel innermost, (p, p, C):
SD3's last layer ("nhwpqc -> nchpwq") and Z-Image at both ends.
"""


def patchify(x, patch):
    """Cut a picture into tokens, channel outermost.

        y[n, h W + w, (c p + i) p + j] = x[n, c, h p + i, w p + j],  p = patch

    x:    [N, C, H*p, W*p]
    -> y: [N, H*W, C*p*p], dtype of x

    Source: black-forest-labs/flux sampling.py, prepare.
    """
    N, C, H, W = x.shape
    p = patch
    y = x.reshape(N, C, H // p, p, W // p, p).transpose(0, 2, 4, 1, 3, 5)
    return y.reshape(N, -1, C * p * p)


def unpatchify(x, patch, height):
    """Undo `patchify`: height in tokens.

    x:    [N, H*W, C*p*p], height = H
    -> y: [N, C, H*p, W*p], dtype of x

    Source: black-forest-labs/flux sampling.py, unpack.
    """
    N, L, D = x.shape
    p, H, W = patch, height, L // height
    C = D // (p * p)
    y = x.reshape(N, H, W, C, p, p).transpose(0, 3, 1, 4, 2, 5)
    return y.reshape(N, C, H * p, W * p)


def patchify_channels_last(x, patch):
    """Cut a picture into tokens, channel innermost.

        y[n, h W + w, (i p + j) C + c] = x[n, c, h p + i, w p + j],  p = patch

    x:    [N, C, H*p, W*p]
    -> y: [N, H*W, p*p*C], dtype of x

    Source: Tongyi-MAI/Z-Image transformer.py, patchify_and_embed.
    """
    N, C, H, W = x.shape
    p = patch
    y = x.reshape(N, C, H // p, p, W // p, p).transpose(0, 2, 4, 3, 5, 1)
    return y.reshape(N, -1, C * p * p)


def unpatchify_channels_last(x, patch, height):
    """Undo `patchify_channels_last`: height in tokens.

    x:    [N, H*W, p*p*C], height = H
    -> y: [N, C, H*p, W*p], dtype of x

    Source: Stability-AI/sd3-ref mmdit.py, unpatchify; Tongyi-MAI/Z-Image transformer.py, unpatchify.
    """
    N, L, D = x.shape
    p, H, W = patch, height, L // height
    C = D // (p * p)
    y = x.reshape(N, H, W, p, p, C).transpose(0, 5, 1, 3, 2, 4)
    return y.reshape(N, C, H * p, W * p)
