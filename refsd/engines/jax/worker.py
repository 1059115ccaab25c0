"""Run JAX in a process of its own: `python -m refsd.engines.jax.worker DEVICE PRECISION`."""

import os
import sys
from functools import partial

import numpy as np

from refsd.engines.arrays.worker import ANY, serve_arrays
from refsd.engines.jax.ops import LIBRARY


def main(device: str, precision: str) -> None:
    # A GPU is shared with whatever else runs there; nothing but the named device may answer.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if device != ANY:
        os.environ["JAX_PLATFORMS"] = device
    import jax

    try:
        place = jax.devices()[0]
    except RuntimeError as error:
        sys.exit(f"jax: {error}")

    def compute(op, params, tensors):
        function = jax.jit(partial(_call, LIBRARY.functions[op], jax, params))
        with jax.default_matmul_precision(precision), jax.default_device(place):
            y = function({name: jax.numpy.asarray(x) for name, x in tensors.items()})
        if y.devices() != {place}:
            raise RuntimeError(f"the answer lies on {y.devices()}, not on {place}")
        return np.asarray(y)

    serve_arrays(compute, lambda: [(one.platform, one.device_kind) for one in jax.devices()])


def _call(function, jax, params, tensors):
    return function(jax, tensors, params)


if __name__ == "__main__":
    main(*sys.argv[1:])
