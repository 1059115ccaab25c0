"""Resampling."""

from refsd.golden.operations.operation import IMAGE, Operation, entry, values


def _upsample_nearest(a, inputs, params):
    return a.upsample_nearest(values(a, inputs["x"]), params["factor"])


OPERATIONS: dict[str, Operation] = {
    "upsample_nearest": entry(
        _upsample_nearest,
        "Repeat each pixel `factor` times in both directions.",
        {"x": IMAGE},
        "[N, C, H*factor, W*factor]",
        channel=1,
        factor=2,
    ),
}
