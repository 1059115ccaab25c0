"""Run one contender: python -m refsd.bench.worker CONTENDER WHAT MODEL SD_CLI REQUEST.

REQUEST is JSON with the other fields of a BenchRequest: parts, side, tokens, threads.

The first line of JSON on stdout has the contender's versions, the reason why it is absent, or what is wrong with
the model. Then each line on stdin starts one turn, whose answer is {"seconds": {row: s}, "peak": bytes}.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refsd.bench import BenchRequest
from refsd.bench.row import Absent
from refsd.bench.sd15 import COMPONENTS, LATENT, ROWS, inputs
from refsd.golden.engine import EngineFailure
from refsd.numerics.errors import BadInput

# row -> function to time; a contender with its own clock returns the seconds
Rows = dict[str, Callable[[], Any]]

USUAL = BenchRequest("", None, None, 1)


def refsd_rows(what: str, model: str, _: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    from refsd.components import forward, load
    from refsd.module import WeightCache
    from refsd.numerics.arithmetic import Arithmetic
    from refsd.numerics.profiles import FLOAT32
    from refsd.weights.checkpoint import open_checkpoint

    if what == "diffusion":
        from refsd.bench.diffusion import refsd_step

        rows, about = refsd_step(request)
        return rows, refsd_setup() | about
    component = COMPONENTS[what]
    m, params = load(open_checkpoint(model), component, Arithmetic(FLOAT32), WeightCache(2**40))
    values = inputs(what)
    return {ROWS[what]: lambda: forward(component, m, values, params, component)}, refsd_setup()


def limit_rows(what: str, model: str, _: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    """Prepare the machine's limit: the time in which it could make refsd's multiplications and nothing else."""
    from refsd.bench.limit import CountedArithmetic, bytes_per_second, multiplications_per_second
    from refsd.components import forward, load
    from refsd.module import WeightCache
    from refsd.numerics.profiles import FLOAT32
    from refsd.weights.checkpoint import open_checkpoint

    if what not in COMPONENTS:
        raise Absent("not asked: only the multiplications of unet and vae are counted")
    counted, component = CountedArithmetic(FLOAT32), COMPONENTS[what]
    # With filters kept, as refsd's contender keeps them: that decides on Winograd.
    m, params = load(open_checkpoint(model), component, counted, WeightCache(2**40))
    forward(component, m, inputs(what), params, component)
    del m
    least = lambda: counted.multiplications / multiplications_per_second()
    copy = bytes_per_second()
    setup = {"multiplications": f"{counted.multiplications / 1e9:.0f} G", "copy": f"{copy / 1e9:.0f} GB/s"}
    return {ROWS[what]: least}, setup


def refsd_setup() -> dict[str, Any]:
    import numba
    import numpy as np
    from threadpoolctl import threadpool_info

    from refsd import __version__

    blas = next((lib for lib in threadpool_info() if lib["user_api"] == "blas"), {})
    return {
        "version": __version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "threads": numba.get_num_threads(),
        "blas": f"{blas.get('internal_api')} {blas.get('version')} {blas.get('architecture')}",
        "blas threads": blas.get("num_threads"),
    }


def torch_rows(what: str, kind: str) -> tuple[Rows, dict[str, Any]]:
    """Prepare diffusers' UNet or decoder of SD 1.5. kind: "eager", "channels_last" or "compile" """
    if what not in COMPONENTS:
        raise Absent("not asked: it reads no GGUF, and in float32 it would hold four bytes for every weight")
    from refsd.bench.graphs import module

    part = module(what)
    import diffusers
    import torch

    setup = {
        "version": torch.__version__,
        "diffusers": diffusers.__version__,
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    values = [torch.from_numpy(value) for value in inputs(what).values()]
    if kind == "channels_last":
        part.to(memory_format=torch.channels_last)
        values[0] = values[0].to(memory_format=torch.channels_last)
    run = torch.compile(part) if kind == "compile" else part
    return {ROWS[what]: lambda: run(*values)}, setup


def onnxruntime_rows(what: str, _: str, __: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    from refsd.bench import graphs

    _switchable(request)
    return graphs.onnxruntime_rows(what, request.threads)


def _switchable(request: BenchRequest) -> None:
    if request.avx2:
        raise Absent("it cannot be kept from AVX-512")


def openvino_rows(what: str, _: str, __: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    from refsd.bench import graphs

    return graphs.openvino_rows(what, request.threads)


def sd_cli_rows(what: str, model: str, program: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    """Prepare one step of sd-cli without guidance; the times come from the program's log."""
    from refsd.bench.sd_cli import seconds_of
    from refsd.engines.sdcpp.program import Program

    if not program:
        raise Absent("no sd-cli: give --sd-cli (--sd-cli-llamafile), or set REFSD_SD_CLI (REFSD_SD_CLI_LLAMAFILE)")
    _switchable(request)
    try:
        version = Program(Path(program)).version
    except EngineFailure as error:
        raise Absent(str(error)) from None
    if what == "diffusion":
        from refsd.bench.diffusion import row_name, sd_cli_files

        files, side = sd_cli_files(request), request.side
        return {row_name(side): lambda: seconds_of("sampling", program, files, side, request.threads)}, {
            "version": version
        }
    stage = {"unet": "sampling", "vae": "vae-decoder"}[what]
    side, threads = 8 * LATENT[what], request.threads
    run = lambda: seconds_of(stage, program, ["-m", model], side, threads)
    return {ROWS[what]: run}, {"version": version, "threads": threads}


Prepare = Callable[[str, str, str, BenchRequest], tuple[Rows, dict[str, Any]]]


def _torch(kind: str) -> Prepare:
    return lambda what, *_: torch_rows(what, kind)


CONTENDERS: dict[str, Prepare] = {
    "refsd": refsd_rows,
    "limit": limit_rows,
    "torch": _torch("eager"),
    "torch channels_last": _torch("channels_last"),
    "torch compile": _torch("compile"),
    "onnxruntime": onnxruntime_rows,
    "openvino": openvino_rows,
    "sd-cli": sd_cli_rows,
    "sd-cli llamafile": sd_cli_rows,
}


def main(contender: str, what: str, model: str, program: str, more: str = "{}") -> None:
    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), flush=True)

    if (score := Path("/proc/self/oom_score_adj")).exists():
        score.write_text("1000")  # where memory is short, this process is ended and not the one that reports
    try:
        request = USUAL._replace(what=what, model=Path(model) if model else None, **json.loads(more))
        request = request._replace(parts={flag: Path(file) for flag, file in request.parts.items()})
        rows, setup = CONTENDERS[contender](what, model, program, request)
        if not contender.startswith("sd-cli"):  # sd-cli starts anew for each turn, so warming up would not help
            for run in rows.values():
                run()
    except Absent as why:
        say({"absent": str(why)})
        return
    except BadInput as error:
        say({"bad input": str(error)})
        return
    say(setup)
    whose = resource.RUSAGE_CHILDREN if contender.startswith("sd-cli") else resource.RUSAGE_SELF
    for _ in sys.stdin:
        seconds = {}
        for row, run in rows.items():
            begun = time.perf_counter()
            try:
                own = run()
            except EngineFailure as error:
                say({"absent": str(error)})
                return
            seconds[row] = own if isinstance(own, float) else time.perf_counter() - begun
        say({"seconds": seconds, "peak": peak_memory(whose)})


def peak_memory(whose: int = resource.RUSAGE_SELF) -> int:
    """Return the peak resident memory of this process, or of its children, in bytes."""
    return resource.getrusage(whose).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
