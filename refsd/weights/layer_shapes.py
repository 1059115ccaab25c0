"""The tensors of one layer: linear layers are [O, I], convolutions [K, C, R, S]."""

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    return shapes | {f"{name}.bias": (outputs,)} if bias else shapes


def conv(name: str, inputs: int, outputs: int, side: int = 3, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs, side, side)}
    return shapes | {f"{name}.bias": (outputs,)} if bias else shapes


def norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}
