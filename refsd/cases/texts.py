"""Cases of text encoders other than SD 1.x's, in the sizes that stable-diffusion.cpp loads."""

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.recipe import Recipe


def _ids(tokens: int, vocab: int, batch: int = 1) -> Recipe:
    return Recipe((batch, tokens), "i32", data="token_ids", exponent=0, n=vocab)


def _llm(name: str, op: str, family: str, layers: list[int], inputs: dict[str, Recipe], type="f32") -> Case:
    return Case(name, f"model/{op}", inputs, {"layers": layers}, ModelRecipe(family, type))


def _sd3(op: str, family: str) -> Case:
    """Make a case of SD 3's CLIP, with a vocabulary of few ids, so that EOS occurs in the middle of a row."""
    params = {"clip_skip": 2, "final_norm": False, "eos": 7}
    model = ModelRecipe(family, "f16")
    return Case(f"full/{family}/sd3", f"model/{op}", {"input_ids": _ids(77, 40, batch=2)}, params, model)


# The second row ends with padding.
_PADDED = {
    "input_ids": _ids(512, 1000, batch=2),
    "attention_mask": Recipe((2, 512), "i32", data="prefix", exponent=0, n=470),
}

CASES = [
    _llm("qwen3/zimage", "qwen3", "qwen3-narrow", [35], {"input_ids": _ids(40, 1000)}),
    _llm("full/qwen3/klein", "qwen3", "qwen3-narrow", [9, 18, 27], _PADDED),
    _llm("mistral/flux2", "mistral", "mistral-narrow", [10, 20, 30], {"input_ids": _ids(60, 1000)}),
    _sd3("clip", "clip-l"),
    _sd3("clip_g", "clip-g"),
    _llm("full/qwen3-4b/zimage", "qwen3", "qwen3-4b", [35], {"input_ids": _ids(40, 151936)}, "q8_0"),
]
