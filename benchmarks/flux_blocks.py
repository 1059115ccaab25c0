"""Time Flux's two kinds of block at full width, refsd's beside torch's: docs/speed.md.

    python -P benchmarks/flux_blocks.py [--side 1024] [--tokens 512] [--runs 3] [--threads 2]

Each contender has a process of its own; they take turns, and the fastest turn of each counts.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from rich.console import Console

from refsd.bench import Entry
from refsd.bench.environment import environment
from refsd.bench.table import table, warnings
from refsd.bench.worker import Rows, peak_memory, refsd_setup
from refsd.golden.recipe import Recipe, realize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32


def blocks_inputs(side: int, tokens: int, width: int = 3072, head: int = 128) -> dict[str, np.ndarray]:
    """Make recipe inputs of Flux's blocks for a picture: img, txt, both (joined), vec and RoPE's angle."""
    from refsd.kernels.rope import rope_angles
    from refsd.models.flux import AXES_DIM, THETA, grid_ids

    assert sum(AXES_DIM) == head
    L = (side // 16) ** 2
    shapes = {"img": (1, L, width), "txt": (1, tokens, width), "vec": (1, width)}
    drawn = {name: realize(Recipe(shape), f"bench {name}").values() for name, shape in shapes.items()}
    ids = np.pad(grid_ids(side // 8, side // 8), ((tokens, 0), (0, 0)))[None]
    return drawn | {
        "both": np.concatenate([drawn["txt"], drawn["img"]], axis=1),
        "angle": rope_angles(ids, AXES_DIM, THETA),
    }


def blocks_rows(side: int, tokens: int) -> list[str]:
    L = (side // 16) ** 2
    return [f"Flux, {kind} block, {L} + {tokens} tokens" for kind in ("double", "single")]


def refsd_blocks(side: int, tokens: int) -> tuple[Rows, dict[str, Any]]:
    """Prepare refsd's Flux blocks with recipe weights in f16. -> (row -> function that runs the block, facts)"""
    from refsd.models.catalogue import NETWORKS
    from refsd.models.flux import double_stream_block, single_stream_block
    from refsd.models.flux.network import FLUX_DEV
    from refsd.module import Module
    from refsd.weights.recipes import tensor_recipe

    shapes = NETWORKS["flux"].shapes(FLUX_DEV._replace(double_blocks=1, single_blocks=1))
    weights = {
        name: realize(tensor_recipe(name, shape, "f16"), name)
        for name, shape in shapes.items()
        if "_blocks." in name
    }
    m, x = Module(weights, Arithmetic(FLOAT32)), blocks_inputs(side, tokens)
    double, single = blocks_rows(side, tokens)
    return {
        double: lambda: double_stream_block(m["double_blocks.0"], x["img"], x["txt"], x["vec"], x["angle"]),
        single: lambda: single_stream_block(m["single_blocks.0"], x["both"], x["vec"], x["angle"]),
    }, refsd_setup() | {"weights": "f16"}


def torch_blocks(side: int, tokens: int) -> tuple[Rows, dict[str, Any]]:
    """Prepare diffusers' Flux blocks with their own random weights; values do not affect the time."""
    import diffusers
    import torch
    from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock, FluxTransformerBlock

    torch.set_grad_enabled(False)
    x = {name: torch.from_numpy(value) for name, value in blocks_inputs(side, tokens).items()}
    angle = x["angle"][0].repeat_interleave(2, dim=1).float()
    turn = angle.cos(), angle.sin()
    two, one = FluxTransformerBlock(3072, 24, 128).eval(), FluxSingleTransformerBlock(3072, 24, 128).eval()
    double, single = blocks_rows(side, tokens)
    return {
        double: lambda: two(x["img"], x["txt"], x["vec"], turn),
        single: lambda: one(x["img"], x["txt"], x["vec"], turn),
    }, {
        "version": torch.__version__,
        "diffusers": diffusers.__version__,
        "threads": torch.get_num_threads(),
        "weights": "f32",
    }


CONTENDERS = {"refsd": refsd_blocks, "torch": torch_blocks}
_rows: Rows = {}  # of a contender's process


def prepare(contender: str, side: int, tokens: int) -> dict[str, Any]:
    """Prepare this process's contender, and run each block once -> its versions and threads."""
    rows, setup = CONTENDERS[contender](side, tokens)
    _rows.update(rows)
    turn()
    return setup


def turn() -> tuple[dict[str, float], int]:
    """Run each block -> (row -> seconds, peak memory of this process in bytes)"""
    seconds = {}
    for row, run in _rows.items():
        begun = time.perf_counter()
        run()
        seconds[row] = time.perf_counter() - begun
    return seconds, peak_memory()


def bench(side: int, tokens: int, runs: int) -> dict[str, Entry]:
    """Let the contenders take turns -> contender -> Entry; one that is not installed is absent."""
    spawn = multiprocessing.get_context("spawn")
    pools = {name: ProcessPoolExecutor(1, spawn) for name in CONTENDERS}
    entries = {}
    for name, pool in pools.items():
        try:
            entries[name] = Entry({}, 0, pool.submit(prepare, name, side, tokens).result())
        except ImportError as error:
            entries[name] = Entry({}, 0, {}, f"{error.name} is not installed")
    for _ in range(runs):
        for name, pool in pools.items():
            if not entries[name].absent:
                seconds, peak = pool.submit(turn).result()
                for row, taken in seconds.items():
                    entries[name].seconds.setdefault(row, []).append(taken)
                entries[name] = entries[name]._replace(peak=peak)
    for pool in pools.values():
        pool.shutdown()
    return entries


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Time Flux's blocks beside torch's.")
    parser.add_argument("--side", type=int, default=1024, help="side of the square picture, in pixels")
    parser.add_argument("--tokens", type=int, default=512, help="text tokens")
    parser.add_argument("--runs", type=int, default=3, help="turns of each contender")
    parser.add_argument("--threads", type=int, default=2, help="threads of each contender")
    given = parser.parse_args(args)
    wanted = environment(given.threads)
    os.environ.clear()
    os.environ.update(wanted)  # the contenders' processes inherit it
    entries = bench(given.side, given.tokens, given.runs)
    console = Console(width=None if sys.stdout.isatty() else 160, emoji=False)
    console.print(table(entries))
    for line in warnings(entries):
        console.print(line, highlight=False, markup=False)


if __name__ == "__main__":
    main(sys.argv[1:])
