"""Stand-ins of sd-cli's other models: files of zeros with the tensors of the models themselves."""

import pytest

from refsd.engines.sdcpp import stand_ins
from refsd.files.formats import open_weights
from refsd.models.clip.network import CLIP_G, clip_shapes, clip_size
from refsd.models.mmdit.network import SD3_MEDIUM, mmdit_size
from refsd.models.qwen3.network import Qwen3Size, qwen3_size
from refsd.models.zimage.network import ZIMAGE, zimage_size


@pytest.mark.parametrize(
    ("write", "size_of", "size"),
    [
        (stand_ins.clip_g, clip_size, CLIP_G),
        (stand_ins.mmdit, mmdit_size, SD3_MEDIUM),
        (stand_ins.zimage, zimage_size, ZIMAGE),
        (lambda folder: stand_ins.qwen3(folder, 2560, 2), qwen3_size, Qwen3Size(2560, 2, mlp=32, vocab=1)),
    ],
)
def test_a_stand_in_is_a_sparse_file_of_a_size(write, size_of, size, tmp_path):
    path = write(tmp_path)
    tensors = open_weights(path)
    assert size_of({name: tensor.shape for name, tensor in tensors.items()}) == size
    assert path.stat().st_blocks * 512 < 1 << 20 < path.stat().st_size


def test_an_encoder_stands_under_the_checkpoints_prefix(tmp_path):
    shapes = {name: tensor.shape for name, tensor in open_weights(stand_ins.encoder_of(tmp_path, 768)).items()}
    prefix = "cond_stage_model.transformer."
    assert {name.removeprefix(prefix) for name in shapes} == {*clip_shapes(clip_size({}))}
    assert all(name.startswith(prefix) for name in shapes)
