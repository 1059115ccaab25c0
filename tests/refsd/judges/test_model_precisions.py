"""A denoiser whose engine rounds activations to few bits, and shows no taps: named with the scale."""

from dataclasses import replace

import pytest

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.judges import judges
from refsd.numerics.profiles import FP8_TENSOR, INT8_ROWS, TORCH_F32
from refsd.weights.recipe_files import RecipeFiles


class Pretender(Reference):
    """Declares float32."""

    name = "pretender"

    def numerics(self, case):
        return TORCH_F32


@pytest.mark.parametrize("how", [FP8_TENSOR, INT8_ROWS], ids=str)
def test_a_denoiser_with_activations_in_few_bits(how, tmp_path):
    files = RecipeFiles(tmp_path)
    truth = Reference(model_files=files)
    runner = conform.Runner(judges(files), lambda case: truth.run(case, case.realize()), [])
    kinds = dict.fromkeys(("f32", "f16", "bf16"), how)
    engine = Pretender(replace(TORCH_F32, activations=kinds), model_files=files)
    (result,) = conform.run(runner, [engine], [CASES["zimage/zimage/whole"]])
    assert result.status == "fail" and result.causes == (f"activations rounded to {how}",)
