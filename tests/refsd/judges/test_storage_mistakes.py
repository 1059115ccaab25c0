"""A dump that is right but stored otherwise is told so; a wrong one is not excused."""

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import refsd
from refsd.cli import app

CONV = "conv2d/f32/3x3-n2-c33-k20-h9-w14"
SILU = "silu/f32/bend-x33x77"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REFSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "case, change, text",
    [
        (CONV, lambda y: y.transpose(0, 2, 3, 1), "y agrees after transpose(0, 3, 1, 2): it is NHWC for NCHW"),
        (CONV, lambda y: y.transpose(), "its axes are reversed, as ggml counts them"),
        (CONV, lambda y: y.reshape(-1), "y agrees after reshape(2, 20, 9, 14)"),
        (SILU, lambda y: y.astype(np.float16), "stored as float16: it conforms under --numerics torch-f16"),
        (
            SILU,
            lambda y: y.astype(ml_dtypes.bfloat16),
            "stored as bfloat16: it conforms under --numerics torch-bf16",
        ),
        (CONV, lambda y: y.astype(np.float16).transpose(0, 2, 3, 1), "NHWC for NCHW; stored as float16"),
    ],
)
def test_what_is_stored_otherwise_is_told_so(case, change, text):
    y = refsd.golden(case).truth["y"].astype(np.float32)
    assert refsd.judge(case, y)
    verdict = refsd.judge(case, change(y))
    assert not verdict and text in str(verdict)


def test_a_wrong_answer_is_not_excused():
    y = refsd.golden(CONV).truth["y"].astype(np.float32)
    for wrong in (y.transpose(0, 2, 3, 1) * 1.01, (y * 1.01).astype(np.float16), y[:, ::-1], y[:, :19]):
        assert "agrees after" not in str(refsd.judge(CONV, wrong)) and "stored as" not in str(
            refsd.judge(CONV, wrong)
        )


def test_the_command_says_so_too(tmp_path):
    np.save("y.npy", refsd.golden(SILU).truth["y"].astype(np.float16))
    done = CliRunner().invoke(app, ["compare", "y.npy", SILU])
    assert done.exit_code == 1 and "stored as float16: it conforms under --numerics torch-f16" in done.stdout
    assert CliRunner().invoke(app, ["compare", "y.npy", SILU, "--numerics", "torch-f16"]).exit_code == 0
