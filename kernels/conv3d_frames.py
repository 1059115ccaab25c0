"""Three-dimensional convolution as a two-dimensional one, with the frames that a filter covers as channels."""

import numpy as np

from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.convolution_geometry import each, positions


def conv3d_frames(x, weight, bias, stride, padding, dilation=1, groups=1, convolve=conv2d_im2col):
    """Compute the convolution of conv3d.py, one output frame at a time.

        y[:, :, f] = conv2d(x[:, :, f*stride + t*dilation - front] for every t, stacked; weight [K, C T, R, S])

    Frames outside of the video are left out of the sum.

    convolve: a two-dimensional convolution with conv2d.py's arguments; sums accumulate as it does them

    Arguments, result: as in conv3d.py.
    """
    N, _, D, H, W = x.shape
    K, _, T, R, S = weight.shape
    stride, dilation = each(stride, 3), each(dilation, 3)
    F, P, Q = positions(x.shape[2:], padding, weight.shape[2:], stride, dilation)
    frames = []
    for f in range(F):
        first, step = f * stride[0] - padding[0], dilation[0]
        # Taps before `t` see frames before the video, taps from `end` frames after it: zeros.
        t, end = max(0, -(first // step)), min(T, -((first - D) // step))
        if t >= end:
            frames.append(np.broadcast_to(bias[:, None, None], (N, K, P, Q)).astype(x.dtype))
            continue
        seen = x[:, :, first + t * step : first + end * step : step]
        frames.append(
            convolve(
                np.ascontiguousarray(seen).reshape(N, -1, H, W),
                np.ascontiguousarray(weight[:, :, t:end]).reshape(K, -1, R, S),
                bias,
                stride[1:],
                padding[2:],
                dilation[1:],
                groups,
            )
        )
    return frames[0][:, :, None] if F == 1 else np.stack(frames, axis=2)
