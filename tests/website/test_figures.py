"""The living figures compute what the code computes: their JavaScript, run by node, beside refsd."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import rounding
import tolerance

from refsd.kernels.quant import BLOCK_TYPES
from refsd.samplers.dpmpp_2m import dpmpp_2m
from refsd.samplers.euler import euler
from refsd.samplers.heun import heun

pytestmark = pytest.mark.site

STATIC = Path(__file__).parents[2] / "website" / "static"
_NODE = shutil.which("node")
needs_node = pytest.mark.skipif(_NODE is None, reason="no node here")


def node(script: str):
    done = subprocess.run([str(_NODE), "-e", script], cwd=STATIC, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
@pytest.mark.parametrize("name, solver", [("euler", euler), ("heun", heun), ("dpmpp_2m", dpmpp_2m)])
def test_a_sampler_of_the_page_is_that_of_the_code(name, solver):
    script = f"""const S = require("./sampler.js"), s = S.karras(8);
    const starts = [[9, -3], [0.5, 14], [-7, -8]];
    const ends = starts.map(x => S.SOLVERS.{name}(x, s).pop());
    const asked = [[1, 2], [-3, 0.5]].map(x => S.denoiser(x, 0.7));
    console.log(JSON.stringify({{ s, starts, ends, asked }}))"""
    found = node(script)
    spread, means = 0.35, np.array([[2, 0], [0, 2], [-2, 0], [0, -2]], float)

    def model(x, sigma):
        whole = spread**2 + sigma**2
        likely = np.exp(-((x[:, None] - means) ** 2).sum(-1) / (2 * whole))
        likely /= likely.sum(1, keepdims=True)
        return np.einsum("nk,nkd->nd", likely, means + spread**2 / whole * (x[:, None] - means))

    np.testing.assert_allclose(model(np.array([[1, 2], [-3, 0.5]]), 0.7), found["asked"], rtol=1e-12)
    ends = solver(model, np.array(found["starts"], np.float64), np.array(found["s"]))
    np.testing.assert_allclose(ends, found["ends"], rtol=1e-9)


@needs_node
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k"])
def test_a_block_of_the_page_is_that_of_the_code(name):
    type = BLOCK_TYPES[name]
    blocks = np.random.default_rng(3).integers(0, 256, (20, type.bytes)).astype(np.uint8)
    for at in (0, 2) if name == "q4_k" else (0,):
        blocks[:, at + 1] = 0x2C  # scales are finite
    script = f"""const B = require("./block.js");
    console.log(JSON.stringify({blocks.tolist()}.map(b => B.dequantize("{name}", Uint8Array.from(b)))))"""
    np.testing.assert_array_equal(np.float32(node(script)), type.dequantize(blocks))


@needs_node
def test_the_page_says_that_a_byte_reaches_the_weights_that_change_with_it():
    script = """const B = require("./block.js"), bad = [];
    for (const [name, t] of Object.entries(B.TYPES)) for (let i = 0; i < t.bytes; i++) {
      const b = new Uint8Array(t.bytes).fill(0x2d), c = Uint8Array.from(b); c[i] ^= 0x91;
      const [x, y] = [B.dequantize(name, b), B.dequantize(name, c)];
      for (let w = 0; w < t.weights; w++)
        if (x[w] !== y[w] && !t.weight(b, w).from.includes(i)) bad.push([name, i, w]);
    }
    console.log(JSON.stringify(bad))"""
    assert node(script) == []


@needs_node
def test_what_the_page_says_of_a_weight_computes_to_it():
    script = """const B = require("./block.js"), bad = [];
    for (const [name, t] of Object.entries(B.TYPES)) for (let i = 0; i < t.weights; i++) {
      const w = t.weight(Uint8Array.from({ length: t.bytes }, (_, n) => 37 * n % 61), i);
      const off = Math.abs(eval(w.text.split("=")[1]) - w.y);
      if (!(off < 1e-3 * (1 + Math.abs(w.y)))) bad.push([name, i, w.text, w.y]);
    }
    console.log(JSON.stringify(bad))"""
    assert node(script) == []


def test_no_tolerance_parts_the_two_engines_and_the_bound_does():
    data = {name: np.array(values) for name, values in tolerance.numbers().items()}
    assert data["wrong"].max() <= data["honest"].max(), (
        "the wrong engine is nowhere worse than the honest one's worst"
    )
    assert (data["honest"] <= data["bound"]).all()
    assert (data["wrong"] > data["bound"]).sum() > 50


@needs_node
def test_what_the_page_says_of_heun_and_euler():
    script = """const S = require("./sampler.js");
    const rms = (name, n) => {
      const s = S.karras(n), fine = S.karras(400);
      let sum = 0;
      for (let seed = 1; seed <= 60; seed++) {
        const normal = S.normals(seed), start = [normal() * s[0], normal() * s[0]];
        const a = S.SOLVERS[name](start, s, normal).pop(), b = S.SOLVERS.heun(start, fine).pop();
        sum += (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2;
      }
      return Math.sqrt(sum / 60);
    };
    const rows = [5, 8, 20].map(n => [rms("heun", n), rms("euler", 2 * n - 1), rms("dpmpp_2m", 2 * n - 1)]);
    console.log(JSON.stringify([...rows, [rms("euler", 10), rms("dpmpp_2m", 10)]]))"""
    (h9, e9, m9), (h15, e15, m15), (h39, e39, m39), (e10, m10) = node(script)
    assert [f"{x:.2g}" for x in (h9, e9, h15, e15, e39 / h39)] == ["0.36", "0.2", "0.085", "0.11", "4.6"]
    assert [f"{x:.2g}" for x in (m10, e10)] == ["0.074", "0.17"]
    assert m9 < e9 and m15 < h15 and m39 < h39


def test_formats_of_the_rounding_page_lie_apart_as_their_units():
    data = rounding.numbers()
    errors = {name: np.array(values) for name, values in data["errors"].items()}
    assert list(errors) == ["float32", "float16", "bfloat16"] and "attention" not in data["steps"]
    assert data["steps"][0] == "layer_norm" and data["steps"][-1] == "gated_add.2"
    np.testing.assert_allclose(np.log2(errors["bfloat16"] / errors["float16"]), 3, atol=0.4)
    assert (errors["float32"] < 0.05 * errors["float16"]).all()
    assert errors["float32"][0] < 3 * 2.0**-24 < 50 * 2.0**-24 < errors["float32"][1], (
        "what the page says of the time"
    )


@needs_node
def test_digits_in_bold_are_those_that_agree():
    script = """const R = require("./rounding.js");
    const agreeing = [["-0.123", "-0.129"], ["1.5", "1.5"], ["2", "-2"]].map(pair => R.agreeing(...pair));
    console.log(JSON.stringify(agreeing))"""
    assert node(script) == [5, 3, 0]
