"""refsd bench: turns, ratios, who is absent, and sd-cli's own clock."""

import io
import os
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from refsd import bench
from refsd.bench import BenchRequest, Entry, best, table, worker
from refsd.bench.card import machine_card
from refsd.bench.environment import environment
from refsd.bench.sd_cli import seconds_of
from refsd.cli import app
from refsd.golden.engine import EngineFailure
from refsd.numerics.errors import BadInput

ENTRIES = {
    "refsd": Entry({"step": [2.5, 2.0]}, 2**30, {"version": "1"}),
    "torch": Entry({"step": [3.0, 4.0]}, 2**31, {"version": "2"}),
    "sd-cli": Entry({}, 0, {}, "no sd-cli"),
}
LOG = "[INFO ] stable-diffusion.cpp:3432 - sampling completed, taking 1.75s"
program = pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")


def rendered(entries):
    console = Console(file=io.StringIO(), width=120)
    console.print(table.table(entries))
    return console.file.getvalue()


def stand_in(tmp_path, text):
    path = tmp_path / "sd-cli"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_best_turn_counts_and_ratios_are_to_refsd():
    assert best(ENTRIES) == {"step": {"refsd": 2.0, "torch": 3.0}}
    shown = rendered(ENTRIES)
    assert "2.00 s" in shown and "3.00 s  1.50x" in shown and "2.00 GiB" in shown


def test_the_absent_are_named(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    lines = list(table.warnings(ENTRIES))
    assert lines[:3] == ["refsd: version 1", "torch: version 2", "sd-cli: absent: no sd-cli"]
    assert "OPENBLAS_CORETYPE=Haswell was preset, and taken out" in lines[3]


def test_contenders_take_turns(monkeypatch):
    order = []

    class Worker:
        def __init__(self, contender, request, sd_cli):
            self.contender = contender

        def answer(self):
            return {"absent": "gone"} if self.contender == "torch" else {"version": "1"}

        def turn(self):
            order.append(self.contender)
            return {"seconds": {"step": float(len(order))}, "peak": len(order)}

        def close(self):
            order.append(f"close {self.contender}")

    monkeypatch.setattr(bench, "_Worker", Worker)
    chosen = ("torch", "sd-cli")
    entries = bench.bench(BenchRequest("unet", None, None, 2, contenders=chosen))
    turns = ["refsd", "sd-cli", "refsd", "sd-cli"]
    assert order == ["refsd", "close torch", *turns, "close sd-cli", "close refsd"]
    assert entries["torch"].absent == "gone"
    assert entries["refsd"] == Entry({"step": [1.0, 3.0, 5.0]}, 5, {"version": "1"})
    order.clear()
    assert [*bench.bench(BenchRequest("unet", None, None, 2, contenders=("refsd",)))] == ["refsd"]
    assert order == ["refsd", "refsd", "close refsd"]


def test_a_contender_that_memory_is_too_short_for_is_absent(monkeypatch):
    monkeypatch.setattr(bench, "available", lambda: 0)
    monkeypatch.setattr(bench, "_Worker", Fake)
    entries = bench.bench(BenchRequest("unet", None, None, 1, contenders=("torch",)))
    assert entries["torch"].absent == "0.0 GiB of memory are free, and refsd itself took 3.0"
    assert entries["refsd"].seconds == {"step": [1.0]}


class Fake:
    """A contender that answers at once and takes 3 GiB."""

    def __init__(self, contender, request, sd_cli):
        self.contender = contender

    def answer(self):
        return {"version": "1"}

    def turn(self):
        return {"seconds": {"step": 1.0}, "peak": 3 * 2**30}

    def close(self):
        pass


def test_a_worker_that_dies_is_absent(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    answer = bench._Worker("refsd", BenchRequest("unet", None, None, 1), None)
    assert answer.answer() == {"absent": "ended with 1"}
    answer.close()


@program
def test_a_worker_that_is_killed_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "exec sleep 60"))
    killed = bench._Worker("refsd", BenchRequest("unet", None, None, 1), None)
    killed._process.kill()
    assert killed.answer() == {"absent": "killed, as Linux does for want of memory"}
    killed.close()


def test_a_missing_file_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match=r"none\.safetensors: no such file"):
        bench.bench(BenchRequest("unet", tmp_path / "none.safetensors", None, 1))
    result = CliRunner().invoke(app, ["bench", "nonsense"])
    assert isinstance(result.exception, BadInput)


def test_an_unusable_model_is_bad_input(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"model\.safetensors"):
        bench.bench(BenchRequest("unet", path, None, 1))


@program
def test_sd_cli_is_timed_by_its_log_and_stopped(tmp_path):
    path = stand_in(tmp_path, f"echo '{LOG}'\nexec sleep 60")
    assert seconds_of("sampling", path, ["-m", "m"], 512) == 1.75


@program
def test_an_sd_cli_that_fails_says_why(tmp_path):
    with pytest.raises(EngineFailure, match="out of luck"):
        seconds_of("sampling", stand_in(tmp_path, "echo out of luck"), ["-m", "m"], 512)


def test_sd_cli_without_a_program_is_absent():
    with pytest.raises(worker.Absent, match="--sd-cli"):
        worker.sd_cli_rows("unet", "m", "")


def test_contenders_are_chosen_by_glob_and_refsd_always_takes_part():
    assert bench._chosen(("torch*", "limit")) == ["refsd", "limit", "torch", "torch channels_last", "torch compile"]
    assert set(bench.USUAL) <= set(bench.CONTENDERS) == set(worker.CONTENDERS)
    with pytest.raises(BadInput, match=r"--contender tensorflow: there are refsd, limit"):
        bench._chosen(("tensorflow",))


def test_the_card_has_machine_limit_and_times():
    entries = ENTRIES | {"limit": Entry({"step": [1.5, 1.4]}, 0, {"multiply-adds": "100 G/s"})}
    text = machine_card(entries, avx2=True)
    assert "| vector instructions | AVX2 (AVX-512 switched off) |" in text
    assert "| multiply-adds | 100 G/s |" in text
    assert "| limit | 1.4 s | 0.70 |  |  |" in text  # 1.4 / 2.0
    assert "| torch | 3 s | 1.50 | 2.00 GiB | 2 |" in text
    assert "| sd-cli | | | | no sd-cli |" in text
    shown = rendered(entries)
    assert "1.40 s  0.70x" in shown
    assert any(line.startswith("limit: the multiplications that refsd makes") for line in table.warnings(entries))


def test_avx512_is_switched_off_by_variables_and_the_rest_stays_absent():
    named = environment(2, environ={"OPENBLAS_CORETYPE": "SkylakeX"}, avx2=True)
    assert named["OPENBLAS_CORETYPE"] == "Haswell" and named["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "+avx512" not in named["NUMBA_CPU_FEATURES"] and "OPENBLAS_CORETYPE" not in environment(
        2, environ={"OPENBLAS_CORETYPE": "SkylakeX"}
    )
    request = BenchRequest("unet", None, None, 1, avx2=True)
    for contender in ("onnxruntime", "sd-cli"):
        with pytest.raises(worker.Absent, match="cannot be kept from AVX-512"):
            worker.CONTENDERS[contender]("unet", "m", "program", request)
