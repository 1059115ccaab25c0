"""Run one contender: python -m refsd.bench.worker CONTENDER WHAT MODEL SD_CLI REQUEST.

REQUEST is JSON with the other fields of a BenchRequest: parts, side, tokens.

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
from refsd.golden.engine import EngineFailure
from refsd.numerics.errors import BadInput

# row -> function to time; a contender with its own clock returns the seconds
Rows = dict[str, Callable[[], Any]]

LATENT = {"unet": 64, "vae": 32}
USUAL = BenchRequest("", None, None, 1)
ROWS = {"unet": "UNet step, 64x64 latents", "vae": "VAE decode, 256x256 pixels"}


def refsd_rows(what: str, model: str, _: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    from refsd.components import forward, load
    from refsd.module import WeightCache
    from refsd.numerics.arithmetic import Arithmetic
    from refsd.numerics.profiles import FLOAT32
    from refsd.weights.checkpoint import open_checkpoint

    if what in ("diffusion", "flux-blocks"):
        from refsd.bench.diffusion import refsd_blocks, refsd_step

        rows, about = {"diffusion": refsd_step, "flux-blocks": refsd_blocks}[what](request)
        return rows, refsd_setup() | about
    component = {"unet": "unet", "vae": "vae-decoder"}[what]
    m, params = load(open_checkpoint(model), component, Arithmetic(FLOAT32), WeightCache(2**40))
    values = inputs(what)
    return {ROWS[what]: lambda: forward(component, m, values, params, component)}, refsd_setup()


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


def inputs(what: str) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    latent = rng.standard_normal((1, 4, LATENT[what], LATENT[what]), np.float32)
    if what == "vae":
        return {"z": latent}
    context = rng.standard_normal((1, 77, 768), np.float32)
    return {"x": latent, "timesteps": np.array([500.0], np.float32), "context": context}


def torch_rows(what: str, _: str, __: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    """Prepare diffusers' UNet or autoencoder of SD 1.5, with random weights; values do not affect the time."""
    if what == "flux-blocks":
        from refsd.bench.diffusion import torch_blocks

        return torch_blocks(request)
    if what == "diffusion":
        raise Absent("not asked: it reads no GGUF, and in float32 it would hold four bytes for every weight")
    try:
        import diffusers
        import torch
    except ImportError as error:
        raise Absent(f"{error.name} is not installed") from None

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    setup = {
        "version": torch.__version__,
        "diffusers": diffusers.__version__,
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    values = {name: torch.from_numpy(value) for name, value in inputs(what).items()}
    if what == "unet":
        unet = diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768).eval()
        return {ROWS[what]: lambda: unet(values["x"], values["timesteps"], values["context"])}, setup
    vae = diffusers.AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    ).eval()
    return {ROWS[what]: lambda: vae.decode(values["z"])}, setup


def sd_cli_rows(what: str, model: str, program: str, request: BenchRequest = USUAL) -> tuple[Rows, dict[str, Any]]:
    """Prepare one step of sd-cli without guidance; the times come from the program's log."""
    from refsd.bench.sd_cli import seconds_of
    from refsd.engines.sdcpp.program import Program

    if what == "flux-blocks":
        raise Absent("not asked: it runs whole models")
    if not program:
        raise Absent("no sd-cli: give --sd-cli, or set REFSD_SD_CLI")
    try:
        version = Program(Path(program)).version
    except EngineFailure as error:
        raise Absent(str(error)) from None
    if what == "diffusion":
        from refsd.bench.diffusion import row_name, sd_cli_files

        files, side = sd_cli_files(request), request.side
        return {row_name(side): lambda: seconds_of("sampling", program, files, side)}, {"version": version}
    stage = {"unet": "sampling", "vae": "vae-decoder"}[what]
    return {ROWS[what]: lambda: seconds_of(stage, program, ["-m", model], 8 * LATENT[what])}, {"version": version}


CONTENDERS = {"refsd": refsd_rows, "torch": torch_rows, "sd-cli": sd_cli_rows}


def main(contender: str, what: str, model: str, program: str, more: str = "{}") -> None:
    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), flush=True)

    try:
        request = USUAL._replace(what=what, model=Path(model) if model else None, **json.loads(more))
        request = request._replace(parts={flag: Path(file) for flag, file in request.parts.items()})
        rows, setup = CONTENDERS[contender](what, model, program, request)
        if contender != "sd-cli":  # sd-cli starts anew for each turn, so warming up would not help
            for run in rows.values():
                run()
    except Absent as why:
        say({"absent": str(why)})
        return
    except BadInput as error:
        say({"bad input": str(error)})
        return
    say(setup)
    whose = resource.RUSAGE_CHILDREN if contender == "sd-cli" else resource.RUSAGE_SELF
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
        peak = resource.getrusage(whose).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        say({"seconds": seconds, "peak": peak})


if __name__ == "__main__":
    main(*sys.argv[1:])
