"""What sd-cli is fed with for SD 2, SDXL, their kin and ControlNet, without any sd-cli."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from refsd.cases import CASES, unets
from refsd.engines.sdcpp.engine import REACHES
from refsd.engines.sdcpp.program import Finished
from refsd.engines.sdcpp.reach import Call
from refsd.engines.sdcpp.tap import Graph, TappedOp
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure

X, HINT, T = (4, 8, 16), (3, 64, 128), (1,)


class Listener:
    """Stands for sd-cli: keeps what it is asked, and gives as many graphs as are waited for."""

    def __init__(self, graphs=None):
        self.graphs = graphs

    def run_tapped(self, args, feeds=(), nodes="", ops="", stop=None, skip=(), weights=False):
        self.args, self.feeds, self.ops, self.stop, self.skip = args, list(feeds), ops, stop, skip
        count, kind = stop
        number = count if self.graphs is None else self.graphs
        copies = [TappedOp("CPY", (0, 0), np.zeros(1), np.full((2, 1, 1), n)) for n in range(3)]
        return Finished("", {}, [Graph(kind, output=np.full((2, 1, 1), n), ops=copies) for n in range(number)])


def put(program: Listener, case: Case, arrays: dict[str, np.ndarray]) -> Call:
    return Call(program, ["-m", "model"], case, arrays, lambda model, layout: Path(model.family), Path())


def asked(name: str, program: Listener) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A case's inputs, and the answer."""
    case = CASES[name]
    assert case.model is not None
    arrays = {argument: tensor.values() for argument, tensor in case.realize().items()}
    return arrays, REACHES[case.model.family, case.op].answer(put(program, case, arrays))


def fed(program: Listener, nth: int) -> list[np.ndarray]:
    return [feed.array for feed in program.feeds if feed.nth == nth]


@pytest.mark.parametrize("family", ["sd21", "sdxl", "sdxl-inpaint", "pix2pix"])
def test_an_item_is_a_step_and_what_is_beside_the_latent_is_an_input_of_its_own(family):
    program = Listener()
    arrays, answer = asked(f"full/{family}/unet", program)
    N, C = arrays["x"].shape[:2]
    assert answer["out"].shape[0] == N and program.args[program.args.index("--steps") + 1] == str(N)
    for n in range(N):
        want = [arrays["x"][n, :4], arrays["timesteps"][n : n + 1], arrays["context"][n]]
        want[1:1] = [arrays["x"][n, 4:]] if C > 4 else []
        want += [arrays["y"][n]] if "y" in arrays else []
        for got, expected in zip(fed(program, n), want, strict=True):
            np.testing.assert_array_equal(got, expected.astype(np.float32))


def test_a_hint_goes_through_the_programs_own_controlnet():
    program = Listener()
    arrays, _ = asked("full/sd15-control/unet", program)
    shapes = [array.shape for array in fed(program, 0)]
    assert shapes == [X, HINT, T, (77, 768), X, T, (77, 768)]
    assert [program.stop[1].count(f"x{width}x1") for width in (320, 640, 1280)] == [4, 3, 6]
    np.testing.assert_array_equal(fed(program, 0)[1], arrays["hint"][0].astype(np.float32))
    assert "--control-image" in program.args


def test_a_controlnets_outputs_are_copies_and_the_first_is_the_hints():
    program = Listener()
    _, answer = asked("full/sd15-control/controlnet", program)
    assert program.ops == "CPY"
    assert {name: y[0, 0, 0, 0] for name, y in answer.items()} == {"control.0": 1, "control.1": 2}


def test_the_pooled_token_is_where_the_prompt_ends():
    program = Listener()
    arrays, answer = asked("full/sdxl/clip_g", program)
    end = int(np.argmax(arrays["input_ids"] == 7))
    prompt = program.args[program.args.index("-p") + 1]
    assert len(prompt.split()) + 1 == end > 1
    assert [len(fed(program, n)) for n in range(3)] == [1, 1, 1]
    # The first graph is CLIP-L's.
    assert [answer[name].flat[0] for name in ("last_hidden_state", "pooled")] == [1, 2]


def test_ids_that_end_at_once_are_no_prompts():
    case = CASES["full/sdxl/clip_g"]
    call = put(Listener(), case, {"input_ids": np.full((1, 77), 7)})
    with pytest.raises(EngineFailure, match="ends before it begins"):
        REACHES["sdxl", "model/clip_g"].answer(call)


def test_sd2_takes_the_layer_before_the_last_and_a_row_of_the_last():
    program = Listener()
    case = Case("t", "model/clip", {}, {"clip_skip": 2, "eos": 7})
    ids = np.full((1, 77), 3)
    ids[0, 1:] = 7
    answer = REACHES["sd21", "model/clip"].answer(put(program, case, {"input_ids": ids}))
    assert program.args[program.args.index("--clip-skip") + 1] == "1"
    assert answer["last_hidden_state"].shape == (1, 2, 1, 1) and answer["pooled"].shape == (1, 1, 1)


@pytest.mark.parametrize("name", ["full/sd15-control/unet", "full/sdxl/clip_g"])
def test_graphs_that_did_not_come(name):
    with pytest.raises(EngineFailure, match="sd-cli computed"):
        asked(name, Listener(graphs=0))


def test_the_encoders_of_zeros_tell_the_family(tmp_path):
    """By the width of the table of tokens under a checkpoint's name; SDXL has a second file."""
    name = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    for family, width, more in (("vega", 768, ["--clip_g"]), ("sdxs-09", 1024, []), ("pix2pix", 768, [])):
        case = CASES[f"full/{family}/unet"]
        flags = REACHES[family, "model/unet"].flags(
            lambda model, layout: tmp_path / model.family, case.model, tmp_path
        )
        assert [flag for flag in flags if flag == "--clip_g"] == more
        with open(flags[flags.index("-m") + 1], "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            assert json.loads(file.read(length))[name]["shape"] == [49408, width]


def test_every_case_is_in_the_programs_shapes():
    for case in unets.CASES:
        assert REACHES[case.model.family, case.op].refuses(case) is None, case.name

    wrong = CASES["full/sdxl/clip_g"]
    assert "norms" in REACHES["sdxl", "model/clip_g"].refuses(
        Case("t", wrong.op, wrong.inputs, {"final_norm": True})
    )
