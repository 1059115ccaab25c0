"""refsd bench kernels: turns, minima and ratios by fake contenders and clocks; each row's call at a tiny size."""

import io
import json
from typing import ClassVar

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from refsd.bench import convolution, families, kernel_tables, kernel_worker, kernels, memory_bound
from refsd.bench.environment import environment, presets
from refsd.bench.kernels import Cell, KernelRequest, Result, Worker
from refsd.bench.row import Absent, Column, Ready, Row, computes
from refsd.cli import app
from refsd.numerics.errors import BadInput


def fake_row(name="convolution/a", truth=None):
    column = lambda *processes: Column(processes, lambda tools: Ready(lambda: None))
    return Row(
        name, {"refsd": column("refsd"), "torch": column("torch"), "ggml": column("ggml", "ggml-llamafile")}, truth
    )


class Fake:
    """Every call of a contender takes as long as `pace` says, less with each turn."""

    order: ClassVar[list[str]]
    pace: ClassVar[dict[str, float]] = {"refsd": 0.01, "torch": 0.03, "ggml-llamafile": 0.04}

    def __init__(self, contender, request):
        self.contender, self.setup, self.absent = contender, {"version": "1"}, ""
        self.turns = 0
        if contender == "ggml":
            self.setup, self.absent = {}, "no library given"

    def ask(self, command, *arguments):
        if self.absent:
            return {"absent": self.absent}
        if command == "ready":
            return {"facts": {"algorithm": self.contender}, "seconds": self.pace[self.contender]}
        if command == "turn":
            self.order.append(self.contender)
            self.turns += 1
            return {"seconds": [self.pace[self.contender] / self.turns] * arguments[1]}
        if command == "save":
            return {"saved": self.contender != "torch"}
        return {"errors": [len(file) * 0 + 1e-7 for file in arguments[1]]}

    def close(self):
        self.order.append(f"close {self.contender}")


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setattr(Fake, "order", [], raising=False)
    monkeypatch.setattr(kernels, "ROWS", {"convolution/a": fake_row(truth=lambda: np.ones(1))})
    monkeypatch.setattr(kernels, "_REST", 0)
    return Fake


def test_contenders_take_turns_and_a_missing_one_is_replaced_or_named(fakes):
    result = kernels.bench(KernelRequest(turns=2), start=fakes)
    assert fakes.order[:6] == ["refsd", "torch", "ggml-llamafile"] * 2
    assert fakes.order[6:] == ["close refsd", "close torch", "close ggml", "close ggml-llamafile"]
    cells = result.cells["convolution/a"]
    assert cells["refsd"].seconds == [0.01] * 3 + [0.005] * 3, "three calls fit into a turn"
    assert cells["torch"].seconds == [0.03] * 2 + [0.015] * 2
    assert (cells["refsd"].best, cells["ggml"].best) == (0.005, 0.02)
    assert (cells["refsd"].error, cells["torch"].error) == (1e-7, None)
    assert result.setups["ggml"] == {"absent": "no library given"}


def test_a_slow_contender_is_called_once(fakes, monkeypatch):
    monkeypatch.setattr(Fake, "pace", {**Fake.pace, "torch": 7.0})
    result = kernels.bench(KernelRequest(turns=2), start=fakes)
    assert result.cells["convolution/a"]["torch"].seconds == [7.0]
    assert "torch" not in fakes.order


def test_a_contender_that_dies_leaves_a_gap(fakes, monkeypatch):
    def ask(self, command, *arguments):
        return {"facts": {}, "seconds": 1e-3} if command == "ready" else {"absent": "the process ended with -9"}

    monkeypatch.setattr(Fake, "ask", ask)
    cells = kernels.bench(KernelRequest(turns=1), start=fakes).cells["convolution/a"]
    assert all(cell.absent == "the process ended" for cell in cells.values())
    assert "-" in rendered(kernel_tables.tables(Result({"convolution/a": cells}, {})))


def test_presets_are_a_column_of_their_own(fakes, monkeypatch):
    monkeypatch.setattr(Fake, "pace", {**Fake.pace, "refsd-preset": 0.02})
    cells = kernels.bench(KernelRequest(turns=1, presets=True), start=fakes).cells["convolution/a"]
    assert cells["refsd, OpenBLAS preset"].best == 0.02


def test_a_glob_that_names_nothing_is_bad_input(fakes):
    with pytest.raises(BadInput, match="--only nothing: no row; there are convolution"):
        kernels.bench(KernelRequest(only=("nothing",)), start=fakes)


def rendered(tables):
    console = Console(file=io.StringIO(), width=200)
    for one in tables:
        console.print(one)
    return console.file.getvalue()


def cell(*seconds, **facts):
    return Cell(list(seconds), facts)


def test_ratios_and_geometric_means():
    rows = {
        "convolution/a": {"refsd": cell(0.02, 0.01, algorithm="winograd4"), "torch": cell(0.02)},
        "convolution/b": {"refsd": cell(0.01), "torch": cell(0.08)},
        "convolution/c": {"refsd": cell(0.01), "torch": Cell([], {}, absent="gone")},
    }
    assert kernel_tables.ratios(rows, "torch", "refsd") == [2.0, 8.0]
    assert kernel_tables.geometric_mean([2.0, 8.0]) == pytest.approx(4)
    shown = rendered(kernel_tables.tables(Result(rows, {})))
    assert "20 ms  2.00x" in shown and "80 ms  8.00x" in shown and "4.00x" in shown and "winograd4" in shown


def test_each_family_has_its_measure(monkeypatch):
    made = Row("dequantize/q4_0", {}, bytes=10**9)
    delta = Row("lokr/a", {}, bytes=2**21)
    monkeypatch.setattr(kernel_tables, "ROWS", {made.name: made, delta.name: delta})
    rows = {
        "dequantize/q4_0": {"refsd": cell(0.1), "ggml": cell(0.2)},
        "memory-bound/silu": {"refsd": cell(0.3), "copy": cell(0.2), "torch": cell(0.4)},
        "lokr/a": {"refsd": cell(0.3, **{"extra MiB": 0.125})},
    }
    shown = rendered(kernel_tables.tables(Result(rows, {})))
    assert "10.0 " in shown and "5.0  2.00x" in shown
    assert "300 ms  1.50x" in shown and "400 ms  2.00x" in shown
    assert "0.12 MiB, 0.0625" in shown or "0.13 MiB, 0.0625" in shown


def test_the_absent_and_the_presets_are_named(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.delenv("OPENBLAS_L2_SIZE", raising=False)
    rows = {"dequantize/q1_0": {"gguf-py": Cell([], {}, absent="gguf-py has no q1_0")}}
    lines = list(kernel_tables.notes(Result(rows, {"torch": {"absent": "torch is not installed"}})))
    assert lines[0] == "torch: absent torch is not installed"
    assert lines[1] == "dequantize/q1_0: no gguf-py: gguf-py has no q1_0"
    assert lines[2].startswith("OPENBLAS_CORETYPE=Haswell was preset")


def test_no_preset_reaches_a_contender():
    environ = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512", "HOME": "/"}
    assert presets(environ) == {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512"}
    clean = environment(2, environ=environ)
    assert not presets(clean) and clean["HOME"] == "/" and clean["NUMBA_NUM_THREADS"] == "2"
    assert presets(environment(2, keep_presets=True, environ=environ)) == presets(environ)


def test_the_worker_times_each_call_with_cold_caches(monkeypatch):
    ticks = iter(range(100))
    called = []

    def ready(tools):
        return computes(lambda: called.append(tools) or np.arange(4.0), algorithm="a")

    def absent(tools):
        raise Absent("not in this one")

    row = Row("x/y", {"ours": Column((), ready), "theirs": Column((), absent)}, lambda: np.arange(4.0) + 1e-6)
    monkeypatch.setattr(kernel_worker, "ROWS", {"x/y": row})
    monkeypatch.setattr(kernel_worker, "FLUSHED", 16)
    bench = kernel_worker.Bench("tools", lambda: next(ticks))
    assert bench.ready("x/y", "ours") == {"facts": {"algorithm": "a"}, "seconds": 1}
    assert bench.ready("x/y", "theirs") == {"absent": "not in this one"}
    assert called == ["tools"] * 2
    assert bench.turn("ours", 3) == {"seconds": [1, 1, 1]}
    assert (bench._flush == 3).all()


def test_the_workers_error_is_relative_to_the_truth(monkeypatch, tmp_path):
    ready = lambda tools: computes(lambda: np.array([3.0, 4.0]))
    row = Row("x/y", {"ours": Column((), ready)}, lambda: np.array([[3.0], [5.0]]))
    monkeypatch.setattr(kernel_worker, "ROWS", {"x/y": row})
    bench = kernel_worker.Bench(None)
    bench.ready("x/y", "ours")
    file = str(tmp_path / "0.npy")
    assert bench.save("ours", file) == {"saved": True}
    assert bench.error("x/y", [file])["errors"] == [pytest.approx(1 / 34**0.5)]


def test_a_worker_that_is_no_contender_ends_and_is_absent(monkeypatch):
    worker = Worker("nobody", KernelRequest())
    assert "ended" in worker.absent
    assert worker.ask("ready", "a", "b") == {"absent": worker.absent}
    worker.close()


def test_ggml_without_a_place_is_absent():
    with pytest.raises(Absent, match="no library given"):
        kernel_worker.ggml_tools("", 2)
    with pytest.raises(Absent, match="no such file"):
        kernel_worker.ggml_tools("/nowhere", 2)


@pytest.mark.parametrize("name", [name for name in families.ROWS if name.startswith(("memory", "lokr", "dequant"))])
def test_each_rows_own_operation_runs_at_a_tiny_size(monkeypatch, name):
    """The rows are made anew with small sizes: what they call exists, and takes what it is given."""
    row = tiny(monkeypatch)[name]
    for column in row.columns.values():
        if column.processes == ("refsd",):
            column.ready(None).call()


def tiny(monkeypatch):
    from refsd.bench import dequantize, lokr

    monkeypatch.setattr(memory_bound, "IMAGE", (1, 64, 4, 4))
    monkeypatch.setattr(memory_bound, "TOKENS", (1, 4, 64))
    monkeypatch.setattr(memory_bound, "HEADS", (1, 4, 2, 32))
    monkeypatch.setattr(memory_bound, "SCORES", (4, 32))
    monkeypatch.setattr(dequantize, "ELEMENTS", 512)
    small = {
        row.name: lokr._row(
            row.name.split("/")[1],
            (1, 16, 6, 6) if "convolution" in row.name else (1, 5, 16),
            (16, 16, 3, 3) if "convolution" in row.name else (16, 16),
            (4, 4),
        )
        for row in lokr.ROWS
    }
    passes = memory_bound._all()
    return {**{row.name: row for row in [*passes, *dequantize.ROWS]}, **small}


def test_products_are_compared_with_their_truth(monkeypatch):
    from refsd.bench import attention, products

    for row in (convolution._row(64, 64, 8), attention._row(16, 2, 8), products._row(4, 32, 8)):
        ready = row.columns["refsd"].ready(None)
        ready.call()
        truth = row.truth()
        assert np.linalg.norm(ready.result() - truth) <= 1e-5 * np.linalg.norm(truth)


def test_the_command_says_what_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(
        kernels, "bench", lambda request, progress: Result({"convolution/a": {"refsd": cell(0.01)}}, {})
    )
    file = tmp_path / "out.json"
    result = CliRunner().invoke(app, ["bench", "kernels", "--only", "convolution/*", "--json", str(file)])
    assert result.exit_code == 0 and "10 ms" in result.stdout
    assert json.loads(file.read_text())["rows"]["convolution/a"]["refsd"]["seconds"] == [0.01]
