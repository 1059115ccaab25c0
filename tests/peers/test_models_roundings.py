"""Blocks and norms of each family, in half precision, round as the honest run does, bit for bit."""

import numpy as np
import pytest
import torch
from diffusers.models.attention import JointTransformerBlock
from diffusers.models.normalization import RMSNorm
from diffusers.models.transformers.transformer_chroma import ChromaTransformerBlock
from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock, FluxTransformerBlock
from diffusers.models.transformers.transformer_flux2 import Flux2SingleTransformerBlock, Flux2TransformerBlock
from diffusers.models.transformers.transformer_z_image import FinalLayer, ZImageTransformerBlock
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from refsd.kernels.tanh import tanh
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import TORCH_BF16, TORCH_F16
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

N, L, J, D = 2, 13, 7, 64
SAME = 0.999  # a LayerNorm's last bit is not torch's in every element
NUMERICS = {"bf16": (TORCH_BF16, torch.bfloat16), "f16": (TORCH_F16, torch.float16)}


class Fixed(torch.nn.Module):
    """Gives what it is told to, and keeps what it was given."""

    def __init__(self, *gives):
        super().__init__()
        self.gives = gives[0] if len(gives) == 1 else gives
        self.given = []

    def forward(self, *args, **kwargs):
        self.given += [*args, *(kwargs[name] for name in kwargs if name.endswith("hidden_states"))]
        return self.gives


class Bench:
    """Random tensors of one dtype for both, and the reference's Module in that dtype's numerics."""

    def __init__(self, name):
        self.numerics, self.dtype = NUMERICS[name]
        self.m = Module({"norm.weight": stored(np.ones(D, np.float32))}, Arithmetic(self.numerics))
        self.rng = torch.Generator().manual_seed(5)

    def draw(self, *shape):
        return torch.randn(shape, generator=self.rng).to(self.dtype)

    def norm(self, layer, rounded_before_the_weight):
        """A peer's RMSNorm with weights of their own, beside the reference's of that kind."""
        layer = layer.to(self.dtype).eval()
        layer.weight.data = (1 + 0.3 * torch.randn(D, generator=self.rng)).to(self.dtype)
        x = self.draw(N, L, D)
        with torch.no_grad():
            theirs = layer(x)
        eps = next(getattr(layer, name) for name in ("variance_epsilon", "eps") if hasattr(layer, name))
        m = Module({"norm.weight": stored(layer.weight.detach().float().numpy())}, Arithmetic(self.numerics))
        ours = (m.rms_norm_apart if rounded_before_the_weight else m.rms_norm)("norm.weight", self.ours(x), eps)
        self.same(theirs, ours)

    def modulation(self, parts):
        """[N, parts D], and its parts as the reference takes them."""
        mod = self.draw(N, parts * D)
        return mod, [self.ours(part) for part in mod.chunk(parts, dim=1)]

    def ours(self, x):
        return x.float().numpy().astype(self.numerics.storage_dtype)

    def stream(self, x, h, h2, shift, scale, gate, shift2, scale2, gate2):
        """What the attention is given, what the MLP is, and the stream behind both."""
        m, (x, h, h2) = self.m, map(self.ours, (x, h, h2))
        after = m.gated_add(x, h, gate)
        return (
            m.adaptive_layer_norm(x, shift, scale),
            m.adaptive_layer_norm(after, shift2, scale2),
            m.gated_add(after, h2, gate2),
        )

    def same(self, theirs, ours):
        share = np.mean(self.ours(theirs) == ours)
        assert share >= SAME, f"{100 * (1 - share):.1f} % of the elements differ"


@pytest.fixture(params=NUMERICS)
def bench(request):
    return Bench(request.param)


@pytest.mark.parametrize("kind", [Qwen3RMSNorm, MistralRMSNorm, T5LayerNorm, RMSNorm])
def test_a_norm_that_is_several_operations(bench, kind):
    bench.norm(kind(D, 1e-6), rounded_before_the_weight=True)


def test_a_norm_that_is_one_operation(bench):
    """FLUX's, FLUX.2's and Chroma's."""
    bench.norm(torch.nn.RMSNorm(D, 1e-6), rounded_before_the_weight=False)


def _both_streams(bench, block, forward, img_mod, txt_mod):
    """A block with an attention and an MLP for picture and text; its products are fixed."""
    x, txt = bench.draw(N, L, D), bench.draw(N, J, D)
    h, h2, c, c2 = bench.draw(N, L, D), bench.draw(N, L, D), bench.draw(N, J, D), bench.draw(N, J, D)
    block.attn, block.ff, block.ff_context = Fixed(h, c), Fixed(h2), Fixed(c2)
    with torch.no_grad():
        txt_out, img_out = forward(block, x, txt)
    for given, out, mlp, ours in (
        (block.attn.given[0], img_out, block.ff, bench.stream(x, h, h2, *img_mod)),
        (block.attn.given[1], txt_out, block.ff_context, bench.stream(txt, c, c2, *txt_mod)),
    ):
        for theirs, mine in zip((given, mlp.given[0], out), ours, strict=True):
            bench.same(theirs, mine)


@pytest.mark.parametrize("kind", [FluxTransformerBlock, JointTransformerBlock], ids=["flux", "mmdit"])
def test_a_block_with_a_modulation_of_its_own(bench, kind):
    block = kind(D, 2, D // 2).to(bench.dtype).eval()
    mod, img_mod = bench.modulation(6)
    txt, txt_mod = bench.modulation(6)
    block.norm1.linear, block.norm1_context.linear = Fixed(mod), Fixed(txt)
    temb = bench.draw(N, D)
    _both_streams(bench, block, lambda block, x, txt: block(x, txt, temb), img_mod, txt_mod)


def test_mmdit_x(bench):
    """Its picture attends to itself besides."""
    block = JointTransformerBlock(D, 2, D // 2, use_dual_attention=True).to(bench.dtype).eval()
    mod, (shift, scale, gate, *mlp, shift2, scale2, gate2) = bench.modulation(9)
    txt, _ = bench.modulation(6)
    block.norm1.linear, block.norm1_context.linear = Fixed(mod), Fixed(txt)
    x, h, own, h2 = (bench.draw(N, L, D) for _ in range(4))
    block.attn, block.attn2, block.ff = Fixed(h, bench.draw(N, J, D)), Fixed(own), Fixed(h2)
    with torch.no_grad():
        _, out = block(x, bench.draw(N, J, D), bench.draw(N, D))
    m = bench.m
    bench.same(block.attn.given[0], m.adaptive_layer_norm(bench.ours(x), shift, scale))
    bench.same(block.attn2.given[0], m.adaptive_layer_norm(bench.ours(x), shift2, scale2))
    after = m.gated_add(m.gated_add(bench.ours(x), bench.ours(h), gate), bench.ours(own), gate2)
    bench.same(block.ff.given[0], m.adaptive_layer_norm(after, *mlp[:2]))
    bench.same(out, m.gated_add(after, bench.ours(h2), mlp[2]))


def test_chroma(bench):
    block = ChromaTransformerBlock(D, 2, D // 2).to(bench.dtype).eval()
    mod, parts = bench.modulation(12)
    temb = mod.reshape(N, 12, D)
    _both_streams(bench, block, lambda block, x, txt: block(x, txt, temb), parts[:6], parts[6:])


def test_flux2(bench):
    block = Flux2TransformerBlock(D, 2, D // 2).to(bench.dtype).eval()
    (img, img_mod), (txt, txt_mod) = bench.modulation(6), bench.modulation(6)
    _both_streams(bench, block, lambda block, x, c: block(x, c, img, txt), img_mod, txt_mod)


def test_flux_single(bench):
    block = FluxSingleTransformerBlock(D, 2, D // 2).to(bench.dtype).eval()
    mod, (shift, scale, gate) = bench.modulation(3)
    x, h = bench.draw(N, L, D), bench.draw(N, L, D)
    block.norm.linear, block.attn, block.proj_out = Fixed(mod), Fixed(bench.draw(N, L, D)), Fixed(h)
    with torch.no_grad():
        txt, img = block(x[:, J:], x[:, :J], bench.draw(N, D))
    bench.same(block.attn.given[0], bench.m.adaptive_layer_norm(bench.ours(x), shift, scale))
    bench.same(torch.cat([txt, img], dim=1), bench.m.gated_add(bench.ours(x), bench.ours(h), gate))


def test_flux2_single(bench):
    block = Flux2SingleTransformerBlock(D, 2, D // 2).to(bench.dtype).eval()
    mod, (shift, scale, gate) = bench.modulation(3)
    x, h = bench.draw(N, L, D), bench.draw(N, L, D)
    block.attn = Fixed(h)
    with torch.no_grad():
        out = block(x, None, mod)
    bench.same(block.attn.given[0], bench.m.adaptive_layer_norm(bench.ours(x), shift, scale))
    bench.same(out, bench.m.gated_add(bench.ours(x), bench.ours(h), gate))


def test_zimage(bench):
    """A scale without a shift, and a gate that is a tanh; the norms are RMSNorms."""
    block = ZImageTransformerBlock(0, D, 2, 2, 1e-5, True).to(bench.dtype).eval()
    mod, (scale, gate, scale2, gate2) = bench.modulation(4)
    x, h, h2 = (bench.draw(N, L, D) for _ in range(3))
    block.adaLN_modulation, block.attention, block.feed_forward = Fixed(mod), Fixed(h), Fixed(h2)
    with torch.no_grad():
        out = block(x, None, None, bench.draw(N, D))
    m = bench.m
    none = np.zeros_like(scale)

    def norm(x):
        return m.rms_norm_apart("norm.weight", x, eps=1e-5)

    after = m.gated_add(bench.ours(x), norm(bench.ours(h)), m.apply(tanh, gate))
    bench.same(block.attention.given[0], m.modulate(norm(bench.ours(x)), none, scale))
    bench.same(block.feed_forward.given[0], m.modulate(norm(after), none, scale2))
    bench.same(out, m.gated_add(after, norm(bench.ours(h2)), m.apply(tanh, gate2)))


def test_zimages_last_layer(bench):
    layer = FinalLayer(D, D).to(bench.dtype).eval()
    mod, (scale,) = bench.modulation(1)
    x = bench.draw(N, L, D)
    layer.adaLN_modulation, layer.linear = Fixed(mod), Fixed(x)
    with torch.no_grad():
        layer(x, bench.draw(N, D))
    ours = bench.m.adaptive_layer_norm(bench.ours(x), np.zeros_like(scale), scale)
    bench.same(layer.linear.given[0], ours)
