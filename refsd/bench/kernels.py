"""Single operations at the sizes of SD 1.5, as refsd's kernels and as torch do them, in float32."""

from collections.abc import Callable
from typing import Any

# C, K, side of the image: layers of the UNet, then of the VAE
CONVOLUTIONS = ((320, 320, 64), (640, 640, 32), (1280, 1280, 16), (512, 512, 64), (256, 256, 128))
# L, J, H, D
ATTENTIONS = ((4096, 4096, 8, 40), (1024, 1024, 8, 80), (4096, 77, 8, 40))
# L, K, O
LINEARS = ((4096, 320, 2560), (1024, 640, 640))
NORM = (320, 64)


def _conv(C: int, K: int, side: int):
    def case(rng):
        from refsd.kernels.conv2d_fast import conv2d_fast

        x, weight, bias = (rng.standard_normal(s, "f4") for s in ((1, C, side, side), (K, C, 3, 3), K))
        return lambda: conv2d_fast(x, weight, bias, 1, (1, 1, 1, 1))

    def torch_case(torch):
        x, weight, bias = torch.randn(1, C, side, side), torch.randn(K, C, 3, 3), torch.randn(K)
        return lambda: torch.nn.functional.conv2d(x, weight, bias, padding=1)

    return case, torch_case


def _attention(L: int, J: int, H: int, D: int):
    def case(rng):
        from refsd.kernels.attention_online import attention_online

        q, k, v = (rng.standard_normal(s, "f4") for s in ((1, L, H, D), (1, J, H, D), (1, J, H, D)))
        return lambda: attention_online(q, k, v, D**-0.5)

    def torch_case(torch):
        q, k, v = torch.randn(1, H, L, D), torch.randn(1, H, J, D), torch.randn(1, H, J, D)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return case, torch_case


def _linear(L: int, K: int, O: int):
    def case(rng):
        from refsd.kernels.linear import linear

        x, weight, bias = (rng.standard_normal(s, "f4") for s in ((L, K), (O, K), O))
        return lambda: linear(x, weight, bias)

    def torch_case(torch):
        x, weight, bias = torch.randn(L, K), torch.randn(O, K), torch.randn(O)
        return lambda: torch.nn.functional.linear(x, weight, bias)

    return case, torch_case


def _norm(C: int, side: int):
    def case(rng):
        from refsd.kernels.activations import silu
        from refsd.kernels.group_norm import group_norm

        x, weight, bias = (rng.standard_normal(s, "f4") for s in ((1, C, side, side), C, C))
        return lambda: silu(group_norm(x, weight, bias, 32, 1e-5))

    def torch_case(torch):
        x, weight, bias = torch.randn(1, C, side, side), torch.randn(C), torch.randn(C)
        return lambda: torch.nn.functional.silu(torch.nn.functional.group_norm(x, 32, weight, bias))

    return case, torch_case


_BOTH = {
    **{f"conv 3x3, {C} -> {K}, {side}x{side}": _conv(C, K, side) for C, K, side in CONVOLUTIONS},
    **{f"attention, L {L} J {J} H {H} D {D}": _attention(L, J, H, D) for L, J, H, D in ATTENTIONS},
    **{f"linear, {L} x {K} -> {O}": _linear(L, K, O) for L, K, O in LINEARS},
    f"group norm + silu, {NORM[0]}, {NORM[1]}x{NORM[1]}": _norm(*NORM),
}
# name -> (source of what it needs) -> the operation, ready to be timed
CASES: dict[str, Callable[[Any], Callable[[], Any]]] = {name: case for name, (case, _) in _BOTH.items()}
TORCH: dict[str, Callable[[Any], Callable[[], Any]]] = {name: case for name, (_, case) in _BOTH.items()}
