"""A denoiser whose engine rounds activations, or queries and keys, to few bits, and shows no taps: named."""

from dataclasses import replace

import pytest

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.judges import judges
from refsd.numerics.profiles import FP8_TENSOR, INT8_ROWS, SAGE_SUMS, TORCH_F32
from refsd.numerics.quantization import Int8Scores
from refsd.weights.recipe_files import RecipeFiles


class Pretender(Reference):
    """Computes as `numerics`, declares `says`."""

    name = "pretender"

    def __init__(self, numerics, says, model_files):
        super().__init__(numerics, model_files=model_files)
        self.says = says

    def numerics(self, case):
        return self.says


def _judged(computes, says, case, folder):
    files = RecipeFiles(folder)
    truth = Reference(model_files=files)
    runner = conform.Runner(judges(files), lambda case: truth.run(case, case.realize()), [])
    engine = Pretender(computes, says, files)
    (result,) = conform.run(runner, [engine], [CASES[case]])
    return result


@pytest.mark.parametrize("how", [FP8_TENSOR, INT8_ROWS], ids=str)
def test_a_denoiser_with_activations_in_few_bits(how, tmp_path):
    kinds = dict.fromkeys(("f32", "f16", "bf16"), how)
    rounds = replace(TORCH_F32, activations=kinds)
    result = _judged(rounds, TORCH_F32, "zimage/zimage/whole", tmp_path)
    assert result.status == "fail" and result.causes == (f"activations rounded to {how}",)


def test_attention_in_int8_that_is_not_declared(tmp_path):
    sage = replace(TORCH_F32, scores=Int8Scores(), sums=SAGE_SUMS)
    result = _judged(sage, TORCH_F32, "flux-dev/flux/first-step", tmp_path)
    assert result.status == "fail" and result.causes == (f"attention's scores are products of {Int8Scores()}",)
    assert _judged(sage, sage, "flux-dev/flux/first-step", tmp_path).status == "pass"
