"""Where stable-diffusion.cpp puts Qwen-Image's text: its own table of rotations against the reference's.

python -P benchmarks/sdcpp_qwen_image_study.py SD_CLI
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from refsd.cases import CASES
from refsd.components import forward, load
from refsd.engines.sdcpp import qwen_image as inside
from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.reach import f32, one_step, size
from refsd.engines.sdcpp.tap import Feed, signature
from refsd.golden.case import ModelRecipe
from refsd.models import qwen_image
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import PROFILES
from refsd.weights import open_checkpoint
from refsd.weights.model_files import model_files

CASE = CASES["full/qwen-image/13-tokens"]
MODEL = ModelRecipe("qwen-image-block", "q8_0")
POSITIONS = {
    "from half the longer side, by 1": lambda J, first: np.repeat(first + np.arange(J)[:, None], 3, 1),
    "from the whole longer side, by 1": lambda J, first: np.repeat(2 * first + np.arange(J)[:, None], 3, 1),
    "from the whole longer side, by J / (J - 1)": lambda J, first: np.repeat(
        np.linspace(2 * first, 2 * first + J, J)[:, None], 3, 1
    ),
}


def sdcpp(program: Program, inputs, with_table: bool) -> np.ndarray:
    """Run one step; with_table: feed the reference's table of rotations. -> [C, H, W]"""
    x, context, t = f32(inputs["x"]), f32(inputs["context"]), f32(1000 * inputs["timesteps"])
    J = context.shape[1]
    items = (t, inside.table_of(J, *x.shape[2:]), context[0], x[0])
    fed = items if with_table else (items[0], *items[2:])
    with tempfile.TemporaryDirectory() as folder:
        args = [*inside.flags(model_files, MODEL, Path(folder)), *one_step(1), *size(x, 8)]
        args += ["-p", " cat" * (J - inside.BEHIND)]
        feeds, skip = [Feed(items, 0, array) for array in fed], (inside.qwen2_5_vl_graph(J + inside.DROPPED),)
        finished = program.run_tapped(args, feeds, stop=(1, signature(items)), skip=skip)
    return next(graph.output for graph in finished.graphs if graph.signature == signature(items))


def reference(inputs, positions) -> np.ndarray:
    right, qwen_image.text_ids = qwen_image.text_ids, positions
    try:
        m, params = load(open_checkpoint(model_files(MODEL, "ldm")), "qwen-image", Arithmetic(PROFILES["ggml-cpu"]))
        return forward("qwen-image", m, inputs, params)["out"][0]
    finally:
        qwen_image.text_ids = right


def main(sd_cli: str) -> None:
    inputs = {name: tensor.values() for name, tensor in CASE.realize().items()}
    program = Program(Path(sd_cli))
    answers = {
        "its own table": sdcpp(program, inputs, False),
        "the reference's table": sdcpp(program, inputs, True),
    }
    print("| text in the reference |", " | ".join(answers), "|\n|---|---|---|")
    for name, positions in POSITIONS.items():
        want = reference(inputs, positions)
        off = [np.linalg.norm(y - want) / np.linalg.norm(want) for y in answers.values()]
        print(f"| {name} |", " | ".join(f"{one:.2e}" for one in off), "|")


if __name__ == "__main__":
    main(*sys.argv[1:])
