"""Where older files keep RRDBNet's tensors: ours, theirs."""

from refsd.weights.keymaps import SAME, Keymap, Row

# xinntao/ESRGAN, RRDBNet_arch.py: modules by name, before Real-ESRGAN renamed them.
NAMED = (
    ("conv_first", "conv_first"),
    ("conv_body", "trunk_conv"),
    ("conv_up1", "upconv1"),
    ("conv_up2", "upconv2"),
    ("conv_hr", "HRconv"),
    ("conv_last", "conv_last"),
)

# The first release: places in one nn.Sequential, which depend on how often the size is doubled.
NUMBERED = {
    1: (("conv_hr", 2), ("conv_last", 4)),
    2: (("conv_up1", 3), ("conv_hr", 5), ("conv_last", 7)),
    4: (("conv_up1", 3), ("conv_up2", 6), ("conv_hr", 8), ("conv_last", 10)),
}


def esrgan_named(blocks: int = 23) -> Keymap:
    """BasicSR's names <-> ESRGAN's of 2020. blocks: how many RRDB"""
    rows = [Row(ours, (theirs,), SAME) for ours, theirs in NAMED]
    for i in range(blocks):
        rows += [Row(f"body.{i}.rdb{j}", (f"RRDB_trunk.{i}.RDB{j}",), SAME) for j in (1, 2, 3)]
    return Keymap(rows)


def esrgan_numbered(blocks: int = 23, scale: int = 4) -> Keymap:
    """BasicSR's names <-> ESRGAN's of 2018. blocks: how many RRDB; scale: 1, 2 or 4"""
    rows = [Row("conv_first", ("model.0",), SAME), Row("conv_body", (f"model.1.sub.{blocks}",), SAME)]
    rows += [Row(ours, (f"model.{place}",), SAME) for ours, place in NUMBERED[scale]]
    for i in range(blocks):
        for j in (1, 2, 3):
            ours, theirs = f"body.{i}.rdb{j}", f"model.1.sub.{i}.RDB{j}"
            rows += [Row(f"{ours}.conv{k}", (f"{theirs}.conv{k}.0",), SAME) for k in (1, 2, 3, 4, 5)]
    return Keymap(rows)
