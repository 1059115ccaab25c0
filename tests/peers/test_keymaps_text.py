"""The names of the text encoders' tensors in a GGUF, against gguf-py's."""

import gguf
import pytest

from refsd.weights import keymaps_text
from refsd.weights.architecture_text import UMT5_XXL, Qwen3Size, T5Size, qwen3_shapes, t5_shapes

pytestmark = pytest.mark.peer

CASES = {
    "t5": (gguf.MODEL_ARCH.T5ENCODER, keymaps_text.t5_gguf(), t5_shapes(T5Size())),
    "umt5": (gguf.MODEL_ARCH.T5ENCODER, keymaps_text.t5_gguf(), t5_shapes(UMT5_XXL)),
    "qwen3": (gguf.MODEL_ARCH.QWEN3, keymaps_text.qwen3_gguf(), qwen3_shapes(Qwen3Size())),
}


@pytest.mark.parametrize("name", CASES)
def test_names_in_a_gguf(name):
    arch, keymap, shapes = CASES[name]
    names = gguf.get_tensor_name_map(arch, 36)
    there = {names.get_name(ours, try_suffixes=(".weight",)): ours for ours in shapes}
    sources, unread = keymap.sources(there)
    assert not unread
    assert {source.names[0]: ours for ours, source in sources.items()} == there
    for theirs, ours in there.items():
        source = keymap.theirs(ours)
        assert source is not None and source.names == (theirs,)
