"""Three-dimensional convolution as a two-dimensional one, with the frames that a filter covers as channels."""

import numpy as np

from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.convolution_geometry import each, positions


def conv3d_frames(x, weight, bias, stride, padding, dilation=1, groups=1, convolve=conv2d_im2col):
    """Compute the convolution of conv3d.py, one output frame at a time.

        y[:, :, f] = conv2d(x[:, :, f*stride + t*dilation - front] for every t, stacked; weight [K, C T, R, S])

    convolve: a two-dimensional convolution with conv2d.py's arguments; sums accumulate as it does them

    Arguments, result: as in conv3d.py.
    """
    N, C, D, H, W = x.shape
    K, per_group, T, R, S = weight.shape
    stride, dilation = each(stride, 3), each(dilation, 3)
    F, P, Q = positions(x.shape[2:], padding, weight.shape[2:], stride, dilation)
    flat = weight.reshape(K, per_group * T, R, S)
    y = np.empty((N, K, F, P, Q), x.dtype)
    for f in range(F):
        seen = np.zeros((N, C, T, H, W), x.dtype)
        for t in range(T):
            d = f * stride[0] + t * dilation[0] - padding[0]
            if 0 <= d < D:
                seen[:, :, t] = x[:, :, d]
        y[:, :, f] = convolve(
            seen.reshape(N, C * T, H, W), flat, bias, stride[1:], padding[2:], dilation[1:], groups
        )
    return y
