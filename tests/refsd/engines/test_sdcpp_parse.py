"""What the adapter of sd-cli reads and refuses, without any sd-cli."""

import os

import msgspec
import numpy as np
import pytest

from refsd.cases import CASES, families, unets
from refsd.engines.sdcpp.engine import SdcppEngine, find
from refsd.engines.sdcpp.program import Program, last_words, timings, version_in
from refsd.engines.sdcpp.tap import describe, read, signature
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure
from refsd.golden.recipe import Recipe

# Lines of a real log, stable-diffusion.cpp of stable-diffusion-cpp-python 0.4.7, 256x192, 2 steps.
LOG = """\
[DEBUG] main.cpp:550  - version: stable-diffusion.cpp version unknown, commit unknown
  |=====>        | 96/1130 - 13.83MB/s\x1b[K\r  |==============| 1130/1130 - 331.34MB/s\x1b[K
[INFO ] model.cpp:993  - loading tensors completed, taking 5.94s (process: 0.00s, read: 5.81s, memcpy: 0.00s)
[DEBUG] conditioner.hpp:541  - computing condition graph completed, taking 720 ms
[INFO ] stable-diffusion.cpp:3168 - get_learned_condition completed, taking 3.02s
[INFO ] stable-diffusion.cpp:3432 - sampling completed, taking 16.60s
[INFO ] stable-diffusion.cpp:3432 - sampling completed, taking 0.40s
[INFO ] stable-diffusion.cpp:3450 - generating 2 latent images completed, taking 17.72s
[INFO ] stable-diffusion.cpp:3212 - decode_first_stage completed, taking 6.99s
[INFO ] stable-diffusion.cpp:3591 - generate_image completed in 26.78s
[INFO ] main.cpp:490  - 1/1 images saved
"""


def test_timings_are_the_programs_own_and_add_up():
    assert timings(LOG) == {"load": 5.94, "clip": 3.02, "sampling": 17.0, "vae-decoder": 6.99, "total": 26.78}


def test_version():
    assert version_in("stable-diffusion.cpp version master-1a2b, commit 1a2b\n") == "master-1a2b, commit 1a2b"
    with pytest.raises(EngineFailure, match=r"no sd-cli.*usage: cp"):
        version_in("usage: cp SOURCE DEST\n")


def test_last_words_leave_progress_bars_out():
    assert last_words(LOG, 1) == "[INFO ] main.cpp:490  - 1/1 images saved"
    assert last_words("") == "nothing"


def test_a_signature_is_in_ggmls_order_and_sorted():
    context, x, t = (
        np.zeros((1, 77, 768), np.float32),
        np.zeros((1, 4, 24, 32), np.float32),
        np.zeros(1, np.float32),
    )
    assert describe(x) == "f32:32x24x4x1"
    assert signature([context, x, t]) == "f32:1x1x1x1,f32:32x24x4x1,f32:768x77x1x1"
    assert describe(np.zeros((1, 77), np.int32)) == "i32:77x1x1x1"


def test_reading_what_the_tap_wrote(tmp_path):
    """Two graphs; the second with a node by name, then an operation with its source."""
    for i in range(5):
        np.arange(6, dtype=np.float32).tofile(tmp_path / f"{i}.bin")
    lines = [
        "graph\ti32:6x1x1x1",
        "input\tleaf_0\ti32\t6\t1\t1\t1\t0.bin\tNONE\t0\t0",
        "output\tfinal\tf32\t3\t2\t1\t1\t1.bin\tADD\t0\t0",
        "graph\tf32:2x3x1x1",
        "node\tblock.1\tf32\t2\t3\t1\t1\t2.bin\tADD\t0\t0",
        "source\tnode_1\tf32\t1\t2\t3\t1\t3.bin\tADD\t0\t0",
        "node\tnode_2\tf32\t1\t2\t3\t1\t4.bin\tGROUP_NORM\t32\t897988541",
        "output\tfinal\tf32\t6\t1\t1\t1\t1.bin\tADD\t0\t0",
    ]
    (tmp_path / "index.txt").write_text("\n".join(lines) + "\n")
    first, second = read(tmp_path)
    assert first.output.shape == (2, 3) and first.inputs[0].dtype == np.int32
    assert list(second.nodes) == ["block.1"] and second.nodes["block.1"].shape == (3, 2)
    (op,) = second.ops
    assert op.op == "GROUP_NORM" and op.params[0] == 32 and op.source.shape == op.result.shape == (3, 2, 1)
    assert np.int32(op.params[1]).view(np.float32) == np.float32(1e-6)


def test_nothing_was_tapped(tmp_path):
    assert read(tmp_path) == []


@pytest.fixture
def program(tmp_path):
    """Something that answers --version as sd-cli does, and fails otherwise."""
    path = tmp_path / "sd-cli"
    path.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "stable-diffusion.cpp version 9, commit c" && exit 0\n'
        'echo "out of memory"; exit 3\n'
    )
    path.chmod(0o755)
    return Program(path)


@pytest.fixture
def engine(program):
    program.shares_ggml = True
    return SdcppEngine("sdcpp", program, lambda model, layout: os.devnull)


def test_a_failing_program_is_quoted(program):
    assert program.version.startswith("9, commit c (sha256 ")
    with pytest.raises(EngineFailure, match="ended with exit code 3: out of memory"):
        program.run(["-p", "a"])


def test_the_cases_that_are_in_its_shapes_are_taken(engine):
    """Of SD 1.x the full size only: it loads no other."""
    taken = {name for name, case in CASES.items() if engine.refuses(case) is None}
    assert taken >= {case.name for case in (*families.CASES, *unets.CASES)}
    assert taken >= {name for name in CASES if name.startswith("full/sd15/") and CASES[name].op != "picture"}
    assert not any(name.startswith("sd15/") for name in taken)


@pytest.mark.parametrize(
    ("op", "inputs", "params", "why"),
    [
        ("model/unet", {"x": (1, 4, 12, 8), "timesteps": (1,), "context": (1, 77, 768)}, {}, "multiples of 8"),
        ("model/unet", {"x": (1, 4, 8, 8), "timesteps": (1,), "context": (1, 154, 768)}, {}, "77 tokens"),
        ("model/clip", {"input_ids": (1, 9)}, {}, "77 tokens at a time"),
        ("model/clip", {"input_ids": (1, 77)}, {"clip_skip": 2}, "clip_skip"),
        ("model/vae-encoder", {"x": (1, 3, 64, 32)}, {}, "multiples of 64"),
        ("model/vae-decoder", {"z": (1, 4, 4, 8)}, {}, "multiples of 8"),
    ],
)
def test_refusals_say_why(engine, op, inputs, params, why):
    recipes = {name: Recipe(shape) for name, shape in inputs.items()}
    assert why in engine.refuses(Case("t", op, recipes, params, ModelRecipe("sd15", "f16")))
    assert "full size" in engine.refuses(Case("t", op, recipes, params, ModelRecipe("sd15", tiny=True)))


@pytest.mark.parametrize(
    ("name", "argument", "shape", "why"),
    [
        ("full/chroma/masked", "context", (2, 512, 4096), "256 tokens"),
        ("full/chroma/masked", "x", (2, 16, 8, 12), "multiples of 8"),
        ("full/chroma-radiance/x0", "x", (2, 3, 64, 96), "multiples of 64"),
        ("full/flux2-dev/reference", "context", (2, 34, 128), "512 tokens"),
        ("full/flux2-dev/reference", "x", (2, 128, 6, 4), "multiples of 4"),
        ("full/flux2-dev/reference", "reference", (2, 128, 4, 6), "multiples of 4"),
        ("vae/flux2/decoder", "z", (2, 128, 4, 6), "multiples of 4"),
        ("full/sd35-medium/154-tokens", "context", (1, 77, 4096), "154 tokens"),
    ],
)
def test_other_families_refuse_with_a_reason(engine, name, argument, shape, why):
    case = CASES[name]
    inputs = case.inputs | {argument: Recipe(shape)}
    assert why in engine.refuses(msgspec.structs.replace(case, inputs=inputs))


def test_a_program_that_holds_ggml_inside_is_refused(engine, program):
    program.shares_ggml = False
    assert "SD_BUILD_SHARED_GGML_LIB" in engine.refuses(CASES["full/sd15/clip/long"])


def test_not_found(tmp_path, monkeypatch):
    monkeypatch.delenv("REFSD_SD_CLI", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = find()
    assert found.engine is None and "REFSD_SD_CLI" in found.why_not
    (found,) = find(str(tmp_path / "absent"))
    assert found.engine is None and "does not start" in found.why_not
