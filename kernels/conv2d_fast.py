"""The quickest convolution for a shape."""

from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_winograd import conv2d_winograd


def conv2d_fast(x, weight, bias, stride, padding):
    """Winograd for 3x3 filters over images of 32x32 pixels and more, else im2col.

    On smaller images there are too few tiles to repay the transformation of the filters.
    Arguments, result: conv2d.py's.
    """
    C, H, W = x.shape[1:]
    K, _, R, S = weight.shape
    if R == S == 3 and stride == 1 and H * W >= 1024 and min(C, K) >= 16:
        return conv2d_winograd(x, weight, bias, padding)
    return conv2d_im2col(x, weight, bias, stride, padding)
