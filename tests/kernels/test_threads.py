"""The number of threads moves no bit of a Numba kernel."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from refsd.kernels.activations import geglu, gelu, silu
from refsd.kernels.attention_online import attention_online
from refsd.kernels.conv2d import conv2d
from refsd.kernels.conv2d_depthwise import conv2d_depthwise
from refsd.kernels.conv2d_winograd import conv2d_winograd
from refsd.kernels.conv3d import conv3d
from refsd.kernels.group_norm import group_norm
from refsd.kernels.layer_norm import layer_norm
from refsd.kernels.rms_norm import rms_norm
from refsd.kernels.softmax import softmax

RNG = np.random.default_rng(0)
X = RNG.standard_normal((33, 154))
IMAGE, W, B = RNG.standard_normal((2, 6, 11, 7)), np.ones(6), np.zeros(6)
QKV = RNG.standard_normal((3, 2, 70, 3, 8)).astype(np.float32)
RUNS = {
    "silu": lambda: silu(X),
    "gelu": lambda: gelu(X),
    "geglu": lambda: geglu(X),
    "softmax": lambda: softmax(X),
    "layer_norm": lambda: layer_norm(X, np.ones(154), np.zeros(154), 1e-5),
    "rms_norm": lambda: rms_norm(X, np.ones(154), 1e-5),
    "group_norm": lambda: group_norm(IMAGE, W, B, 3, 1e-5),
    "conv2d": lambda: conv2d(IMAGE, np.ones((4, 6, 3, 3)), np.zeros(4), 1, (1, 1, 1, 1)),
    "conv2d_depthwise": lambda: conv2d_depthwise(IMAGE, np.ones((6, 1, 3, 3)), np.zeros(6), 1, (1, 1, 1, 1)),
    "conv2d_winograd2": lambda: conv2d_winograd(IMAGE, np.ones((40, 6, 3, 3)), np.zeros(40), (1, 1, 1, 1), 2),
    "conv2d_winograd4": lambda: conv2d_winograd(IMAGE, np.ones((40, 6, 3, 3)), np.zeros(40), (1, 1, 1, 1), 4),
    "conv3d": lambda: conv3d(IMAGE[None], np.ones((4, 2, 3, 3, 3)), np.zeros(4), 1, (1, 1, 1, 1, 1, 1)),
    "attention_online": lambda: attention_online(*QKV, 0.3),
}


# Prints, for each number of threads up to Numba's, the SHA-256 of each run.
SCRIPT = """
import hashlib, json, numba, runpy, sys
runs = runpy.run_path(sys.argv[1])["RUNS"]
for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
    numba.set_num_threads(threads)
    print(json.dumps({name: hashlib.sha256(run().tobytes()).hexdigest() for name, run in runs.items()}))
"""


def hashes(threads):
    """In a process of its own, because Numba reads the number when it starts."""
    env = os.environ | {"NUMBA_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-P", "-c", SCRIPT, __file__], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.jitted
def test_bits():
    one, two = hashes(1), hashes(3)
    assert len(one) == 1 and len(two) == 3
    assert all(answer == one[0] for answer in two)
    assert len({*one[0].values()}) == len(RUNS)
