"""Run a command as on other kinds of CPU: without the instructions that these lack, with their libraries' kernels.

    uv run python tests/kinds.py -- pytest -q tests/kernels tests/numerics
    uv run python tests/kinds.py haswell skylake -- pytest -q tests/golden

Without names: all kinds. The exit code is 1 if the command fails as any kind. A kind takes instructions away and
adds none: only a machine with AMX or AVX512-FP16 shows what these do. docs/processors.md says what differs.
"""

import os
import subprocess
import sys
from typing import NamedTuple

import llvmlite.binding


class Kind(NamedTuple):
    """
    without:  prefixes of the features, as LLVM names them, that Numba's code must not use
    openblas: whose kernels OpenBLAS takes; onednn: the widest instructions that oneDNN (torch, OpenVINO) takes
    aten:     the same for torch's own kernels; numpy: groups of features that NumPy must not use
    """

    without: tuple[str, ...]
    openblas: str
    onednn: str
    aten: str
    numpy: str = ""


_AMX = ("amx", "avx10")
_NEWER = ("avx512bf16", "avx512fp16", "avx512vnni", "avx512vbmi", "avx512bitalg", "avx512vpopcntdq", "avx512ifma")
_WIDE = ("avx512", "evex512", "avxvnni", "avxifma", "avxneconvert")
KINDS = {
    "nehalem": Kind(
        (*_AMX, *_WIDE, "avx", "fma", "f16c", "vaes", "vpclmulqdq"), "Nehalem", "SSE41", "default", "X86_V3 X86_V4"
    ),
    "haswell": Kind((*_AMX, *_WIDE), "Haswell", "AVX2", "avx2", "X86_V4 AVX512_ICL AVX512_SPR"),
    "zen4": Kind((*_AMX, "avx512fp16"), "Zen", "AVX512_CORE_BF16", "avx512"),
    "skylake": Kind((*_AMX, *_NEWER), "SkylakeX", "AVX512_CORE", "avx512", "AVX512_ICL AVX512_SPR"),
}


def environment(kind: Kind) -> dict[str, str]:
    features = llvmlite.binding.get_host_cpu_features()
    kept = {name: on and not name.startswith(kind.without) for name, on in features.items()}
    return {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": ",".join(("+" if on else "-") + name for name, on in sorted(kept.items())),
        "OPENBLAS_CORETYPE": kind.openblas,
        "ONEDNN_MAX_CPU_ISA": kind.onednn,
        "ATEN_CPU_CAPABILITY": kind.aten,
        "NPY_DISABLE_CPU_FEATURES": kind.numpy,
    }


def main() -> int:
    names, _, command = (" ".join(sys.argv[1:])).partition("-- ")
    wanted = names.split() or [*KINDS]
    unknown = [name for name in wanted if name not in KINDS]
    if unknown or not command:
        print(__doc__, f"Kinds: {', '.join(KINDS)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"\n== as {name}", flush=True)
        if subprocess.run(command.split(), env={**os.environ, **environment(KINDS[name])}).returncode:
            failed.append(name)
    print(f"\n{len(wanted) - len(failed)} passed, {len(failed)} failed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
