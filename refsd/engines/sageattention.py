"""The engine sageattention: SageAttention 1's int8 attention by its own Triton kernels, in a process of its own.

The process is `python -m refsd.engines.sageattention`. Without a GPU Triton's interpreter runs the kernels; the
package's entry asks for a GPU, so its two steps, quantisation and attention, are called as it calls them.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from refsd.engines.arrays.array_engine import Library, array_engines
from refsd.engines.worker import Worker, serve
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import how_to_install
from refsd.numerics.profiles import TORCH_F32, Float16Sums
from refsd.numerics.tensor import StoredTensor, stored

# attn_qk_int8_per_block.py: weights and values in float16, whose products are added up in float16 for 64 keys.
NUMERICS = replace(TORCH_F32, name="sageattention", products="f16", sums={"attention": Float16Sums(step=1, run=64)})
_BLOCKS = {"query_block": 128, "key_block": 64}


def find(timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed sageattention."""
    for package in ("torch", "triton", "sageattention"):
        if importlib.util.find_spec(package) is None:
            return [EngineSearch("sageattention", None, how_to_install("sageattention"))]
    worker = Worker(["-m", "refsd.engines.sageattention"], timeout)
    version = importlib.metadata.version("sageattention")
    return array_engines(LIBRARY, "sageattention", version, {"": ("float32", NUMERICS)}, worker, on_cpu=True)


def _attention(torch, x, params):
    from sageattention.attn_qk_int8_per_block import forward
    from sageattention.quant_per_block import per_block_int8

    q, k, v = (x[name].transpose(1, 2).contiguous() for name in ("q", "k", "v"))
    if params["smooth"]:
        k = k - k.mean(dim=2, keepdim=True)
    codes = per_block_int8(q, k, sm_scale=params["scale"])
    return forward(codes[0], codes[2], v.half(), codes[1], codes[3], output_dtype=q.dtype).transpose(1, 2)


def _cannot(case: Case) -> str | None:
    if {case.inputs[name].shape[-1] for name in ("q", "v")} not in ({64}, {128}):
        return "SageAttention 1's kernel takes heads of 64 or of 128 channels"
    for name, size in _BLOCKS.items():
        if case.params.get(name, size) != size:
            return f"SageAttention 1 has a {name} of {size}"
    return None


LIBRARY = Library(
    "sageattention",
    functions={"attention_int8": _attention},
    refusals={"attention_int8": _cannot},
)


def compute(torch, params: Mapping, inputs: Mapping[str, StoredTensor]) -> np.ndarray:
    """Answer a case of attention_int8."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = {name: torch.from_numpy(x.values().astype(np.float32)).to(device) for name, x in inputs.items()}
    with torch.inference_mode():
        return _attention(torch, tensors, params).float().cpu().numpy()


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read where Triton is imported
    torch.set_num_threads(1)
    serve(lambda header, inputs: ({}, {"y": stored(compute(torch, header["params"], inputs))}))


if __name__ == "__main__":
    main()
