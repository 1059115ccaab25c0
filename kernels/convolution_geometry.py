"""What the arguments of a convolution say about its output."""


def each(value, axes):
    """A stride or a dilation as one number an axis: 2 -> (2, 2); (2, 1) as it is."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes


def positions(sizes, padding, taps, stride, dilation):
    """How many positions a filter has along each axis.

        (size + before + after - dilation (taps - 1) - 1) // stride + 1

    padding: before and after each axis in turn: (top, bottom, left, right)
    """
    return tuple(
        (sizes[i] + padding[2 * i] + padding[2 * i + 1] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1
        for i in range(len(sizes))
    )
