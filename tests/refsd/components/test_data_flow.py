"""The data flow of every tiny model is read off its run, and told as the legend of its taps."""

import json

import pytest
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.components.data_flow import trace
from refsd.numerics.errors import BadInput

OF_COMPONENT = {
    case.op: name
    for name, case in CASES.items()
    if case.op.startswith("model/") and not name.startswith(("full/", "lone/"))
}


@pytest.mark.parametrize("component", OF_COMPONENT)
def test_every_operation_but_tables_takes_results_of_earlier_ones(component):
    steps = trace(CASES[OF_COMPONENT[component]]).steps
    assert all(j < i for i, step in enumerate(steps) for _, j in step.takes)
    tables = {"embedding", "parameter", "timestep_embedding", "layer_norm"}
    assert {step.op for step in steps if step.op and not step.takes} <= tables


def test_the_legend_tells_which_part_of_a_modulation_an_operation_takes():
    lines = shown("flux-dev/flux/between", "--taps", "single_blocks.0.*").output
    parts = [f"part {k} of 3 of single_blocks.0.modulation.lin" for k in (1, 2, 3)]
    assert f"shift = {parts[0]}, scale = {parts[1]}" in lines and f"gate = {parts[2]}" in lines


def test_the_legend_tells_which_slice_of_a_table_of_modulations_an_operation_takes():
    lines = shown("wan/wan/frames", "--taps", "blocks.0.*").output.splitlines()
    legend = {name: rest for name, _, rest in (line.partition(" ") for line in lines)}
    part = "slice {} of 6 along axis 1 of blocks.0.add".format
    assert legend["blocks.0.adaptive_layer_norm.1"].endswith(f"shift = {part(4)}, scale = {part(5)}")
    assert legend["blocks.0.gated_add"].endswith(f"gate = {part(3)}")


def shown(*arguments: str):
    return CliRunner().invoke(app, ["golden", "show", *arguments])


def test_the_legend_tells_queries_from_keys_and_text_before_picture():
    lines = shown("flux-dev/flux/between", "--taps", "double_blocks.0.*").output.splitlines()
    legend = {name: rest.strip() for name, _, rest in (line.partition(" ") for line in lines)}
    norms = [f"double_blocks.0.{stream}_attn.norm.{{}}_norm.scale" for stream in ("txt", "img")]
    both = " and ".join(norms)
    assert legend["double_blocks.0.rope"] == f"[2, 11, 2, 128]     x = {both.format('query', 'query')}"
    assert legend["double_blocks.0.rope.1"].endswith(both.format("key", "key"))
    assert "k = double_blocks.0.rope.1, v = double_blocks.0.txt_attn.qkv" in legend["double_blocks.0.attention"]


def test_the_legend_has_the_outputs_of_blocks_behind_what_they_are():
    lines = shown("flux-dev/flux/between", "--taps", "double_blocks.0.*").output.splitlines()
    blocks = {words[0]: words[-1] for words in map(str.split, lines) if "out" in words}
    assert blocks == {
        "double_blocks.0.img_mlp": "double_blocks.0.img_mlp.2",
        "double_blocks.0.txt_mlp": "double_blocks.0.txt_mlp.2",
        "double_blocks.0.0": "double_blocks.0.gated_add.2",
        "double_blocks.0.1": "double_blocks.0.gated_add.3",
    }
    names = [line.split()[0] for line in shown("flux-vae/vae-decoder/wide", "--taps", "*mid*").output.splitlines()]
    assert names.index("decoder.mid.block_1") == names.index("decoder.mid.block_1.add") + 1


def test_a_misspelt_tap_is_recognised():
    refused = shown("flux-dev/flux/between", "--taps", "double_blocks.0.atention").exception
    assert '(did you mean "double_blocks.0.attention"?)' in str(refused)


def test_the_legend_as_json():
    rows = json.loads(shown("t5xxl/t5/long", "--taps", "*.0.SelfAttention.k", "--json").output)
    assert [row["tap"].partition("block.")[2][0] for row in rows] == [*map(str, range(len(rows)))] and rows[0][
        "from"
    ]


@pytest.mark.parametrize(("case", "glob"), [("t5xxl/t5/long", "zz"), ("full/sd3-medium/154-tokens", "*")])
def test_what_has_no_legend_is_refused_in_a_line(case, glob):
    refused = shown(case, "--taps", glob).exception
    assert isinstance(refused, BadInput) and str(refused).startswith(f"{case}: ")
