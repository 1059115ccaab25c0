"""Compute the size of a convolution's output from its arguments."""


def each(value, axes):
    """Expand a stride or dilation to one number for each axis: 2 -> (2, 2); (2, 1) is unchanged."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes


def positions(sizes, padding, taps, stride, dilation):
    """Count the positions of a filter along each axis.

        (size + before + after - dilation (taps - 1) - 1) // stride + 1

    padding: before and after each axis in turn: (top, bottom, left, right)
    """
    return tuple(
        (sizes[i] + padding[2 * i] + padding[2 * i + 1] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1
        for i in range(len(sizes))
    )
