"""The names of the text encoders' tensors in a GGUF, against gguf-py's."""

import gguf
import pytest

from refsd.models.qwen3.network import Qwen3Size, qwen3_gguf_keymap, qwen3_shapes
from refsd.models.t5.network import UMT5_XXL, T5Size, t5_gguf_keymap, t5_shapes

pytestmark = pytest.mark.peer

CASES = {
    "t5": (gguf.MODEL_ARCH.T5ENCODER, t5_gguf_keymap(), t5_shapes(T5Size())),
    "umt5": (gguf.MODEL_ARCH.T5ENCODER, t5_gguf_keymap(), t5_shapes(UMT5_XXL)),
    "qwen3": (gguf.MODEL_ARCH.QWEN3, qwen3_gguf_keymap(), qwen3_shapes(Qwen3Size())),
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
