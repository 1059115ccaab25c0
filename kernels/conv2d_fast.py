"""Choose the fastest convolution algorithm for a shape, and run it."""

from typing import NamedTuple

from refsd.kernels.conv2d_depthwise import conv2d_depthwise
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_packed import PackedFilters, bytes_of_packed, conv2d_packed, pack_filters
from refsd.kernels.conv2d_winograd import Filters, bytes_of_filters, conv2d_winograd, transform_filters
from refsd.kernels.convolution_geometry import each, positions

_CHANNELS = 32
_FILTERS = 12  # fewer would not fill a block of the microkernel
_TILES, _TILES_ONCE = 36, 64  # least tiles for Winograd; if it also transforms filters


class Choice(NamedTuple):
    """
    name: "winograd4", "winograd2", "packed", "im2col", "matmul" (a 1x1 filter) or "depthwise"
    why:  the reason in a few words
    tile: side of Winograd's tile, 4 or 2; 0 for the other algorithms
    """

    name: str
    why: str
    tile: int = 0


def choose(x_shape, weight_shape, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1, kept=True):
    """Choose the fastest algorithm for these shapes. -> Choice

    kept: True if transformed or packed filters are cached between calls; False counts that work too

    Winograd pays off for many tiles. Measured on two cores with AVX-512, C = K, one image, in ms:

        C     side  F(4x4)  F(2x2)  im2col  F(4x4) and its filters
        64    32    0.44    0.73    0.59    0.57
        320   8     1.3     0.91    0.83    3.2
        320   16    1.4     1.5     1.8     2.9
        320   64    5.8     11      20      6.6
        640   12    2.4     2.4     3.1     12
        640   32    4.8     8.5     18      9.2
        1280  16    8.3     7.7     19      28
        1280  32    18      31      70      41
    """
    stride, dilation = each(stride, 2), each(dilation, 2)
    N, C, H, W = x_shape
    K, _, R, S = weight_shape
    if groups == C > 1:
        return Choice("depthwise", "a group a channel: no matrix")
    packed = kept and groups == 1 and K >= _FILTERS
    if (R, S) == (1, 1) and stride == (1, 1) and not any(padding):
        why = "1x1 filter of stride 1: the image is its own columns"
        return Choice("packed" if packed else "matmul", why)
    columns = "packed" if packed else "im2col"
    if (R, S) != (3, 3):
        return Choice(columns, f"{R}x{S} filter")
    if stride != (1, 1) or dilation != (1, 1) or groups != 1:
        return Choice(columns, "stride, dilation or groups")
    if min(C, K) < _CHANNELS:
        return Choice(columns, f"fewer than {_CHANNELS} channels")
    P, Q = positions((H, W), padding, (R, S), stride, dilation)
    tiles4, tiles2 = (N * -(-P // tile) * -(-Q // tile) for tile in (4, 2))
    if tiles4 >= (_TILES if kept else _TILES_ONCE):
        return Choice("winograd4", f"{tiles4} tiles of 4x4", 4)
    if kept and tiles2 >= _TILES:
        return Choice("winograd2", f"{tiles2} tiles of 2x2, only {tiles4} of 4x4", 2)
    return Choice(columns, f"only {tiles4} tiles of 4x4" + ("" if kept else " to transform filters for"))


def prepare(weight, choice):
    """Transform or pack a weight for the algorithm `choice`, once for all calls; others take the weight itself."""
    if choice.name == "packed":
        return pack_filters(weight)
    return transform_filters(weight, choice.tile) if choice.tile else weight


def bytes_of_prepared(weight_shape, choice, dtype) -> int:
    """Return the size in bytes of what `prepare` makes of a weight [K, C, R, S]; 0 if that is the weight itself."""
    K, C, R, S = weight_shape
    if choice.name == "packed":
        return bytes_of_packed(K, C * R * S, dtype)
    return bytes_of_filters(K, C, choice.tile, dtype) if choice.tile else 0


def conv2d_fast(x, weight, bias, stride, padding, dilation=1, groups=1):
    """Compute the convolution of conv2d.py by the algorithm that `choose` selects.

    weight: [K, C/groups, R, S], or the result of `prepare`, which fixes the algorithm

    Sums accumulate in the dtype of x.
    Error (float32): relative L2 <= 5e-6 against float64; the files of the algorithms give each one's error.
    Other arguments, result: as in conv2d.py.
    """
    if isinstance(weight, Filters):
        return conv2d_winograd(x, weight, bias, padding)
    if isinstance(weight, PackedFilters):
        return conv2d_packed(x, weight, bias, stride, padding, dilation)
    choice = choose(x.shape, weight.shape, stride, padding, dilation, groups, kept=False)
    if choice.tile:
        return conv2d_winograd(x, weight, bias, padding, choice.tile)
    if choice.name == "depthwise":
        return conv2d_depthwise(x, weight, bias, stride, padding, dilation)
    return conv2d_im2col(x, weight, bias, stride, padding, dilation, groups)
