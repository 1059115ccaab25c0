"""Run MLX in a process of its own: `python -m refsd.engines.mlx.worker DEVICE`."""

import sys

import ml_dtypes
import numpy as np

from refsd.engines.arrays.worker import ANY, serve_arrays
from refsd.engines.mlx.ops import LIBRARY


def main(device: str) -> None:
    import mlx.core as mx
    import mlx.nn
    import mlx.nn.layers

    kind = mx.cpu if device in ("cpu", ANY) else mx.gpu
    if not mx.is_available(kind):
        sys.exit(f"this MLX has no {device}")
    mx.set_default_device(mx.Device(kind, 0))

    def compute(op, params, tensors):
        y = LIBRARY.functions[op](mlx, {name: _given(mx, x) for name, x in tensors.items()}, params)
        mx.eval(y)
        if y.dtype == mx.bfloat16:
            return np.array(y.view(mx.uint16)).view(ml_dtypes.bfloat16)
        return np.array(y)

    def devices():
        gpu = "metal" if sys.platform == "darwin" else "cuda"
        return [("cpu", sys.platform), *([(gpu, "GPU")] if mx.is_available(mx.gpu) else [])]

    serve_arrays(compute, devices)


def _given(mx, x: np.ndarray):
    if x.dtype == ml_dtypes.bfloat16:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16)
    return mx.array(x)


if __name__ == "__main__":
    main(*sys.argv[1:])
