"""Find engines whose sums are more precise than they declare: sums in float64 under a declared float32.

Such answers conform, but the bound of float32 lets errors pass that the bound of float64 would show.
"""

import shlex
from collections.abc import Iterable, Mapping

from refsd.golden import verdict
from refsd.golden.report import Result

# Operations whose error is that of a sum. Measured on 3 to 66 answers each of torch, onnxruntime, OpenVINO, ggml,
# MLX, JAX, ONNX's reference and a serial loop: at most 24 % are below half of the honest error. Of an engine that
# sums in float64 95 % (its median: 0.16); 69 % beside OpenBLAS's kernels for AVX-512 with AMX, which err less.
_OPS = ("linear", "conv2d", "conv3d", "attention")
_NEAR = 0.5  # of the honest run's error
_SHARE = 0.6  # of the answers that must be so near
_ANSWERS = 10  # at least


def precise_sums(results: Iterable[Result], arguments: Mapping[str, str]) -> list[str]:
    """Return a line for each engine and operation whose answers are mostly far nearer to the truth than declared.

    arguments: engine -> the argument that names it
    """
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for r in results:
        if r.status == verdict.PASS and r.op in _OPS:
            of = ratios.setdefault((r.engine, r.numerics, r.op), [])
            of += [m.relative_l2 / m.honest_relative_l2 for m in r.outputs if m.honest_relative_l2]
    lines = []
    for (engine, numerics, op), of in ratios.items():
        near = sum(ratio < _NEAR for ratio in of)
        if len(of) >= _ANSWERS and near >= _SHARE * len(of):
            again = shlex.join(("refsd", "profile", arguments[engine], "--ops", op))
            lines.append(
                f"{engine}: {near} of {len(of)} answers of {op} have less than half of the error of {numerics}, so "
                f"its sums are probably more precise than declared (float64?): `{again}` tells what to declare"
            )
    return lines
