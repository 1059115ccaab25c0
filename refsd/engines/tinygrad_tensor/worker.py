"""Run tinygrad in a process of its own: `python -m refsd.engines.tinygrad_tensor.worker DEVICE CLANG`."""

import os
import sys

from refsd.engines.arrays.worker import ANY, serve_arrays
from refsd.engines.tinygrad_tensor.ops import LIBRARY


def main(device: str, compiler: str) -> None:
    if compiler:
        os.environ["CC"] = compiler
    if device != ANY:
        os.environ["DEV"] = device
    import tinygrad
    import tinygrad.nn

    if device not in (ANY, tinygrad.Device.DEFAULT):
        sys.exit(f"tinygrad computes on {tinygrad.Device.DEFAULT}, not on {device}")

    def compute(op, params, tensors):
        given = {name: tinygrad.Tensor(x, device=device).realize() for name, x in tensors.items()}
        y = LIBRARY.functions[op](tinygrad, given, params).contiguous().realize()
        return y.numpy()

    serve_arrays(
        compute,
        lambda: [(name, "by clang" if name == "CPU" else "") for name in tinygrad.Device.get_available_devices()],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
