"""Without Dask and fsspec installed, everything is as before, and --dask says what is missing."""

import subprocess
import sys

_SCRIPT = """
import sys
from typer.testing import CliRunner

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"dask", "distributed", "fsspec", "s3fs", "tornado"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from refsd.cli import app
for arguments in sys.argv[1:]:
    done = CliRunner().invoke(app, arguments.split())
    print(done.exit_code, repr(done.exception))
"""


def test_no_dask_is_needed(tmp_path):
    commands = [
        "golden make g --cases silu/f32/*",
        "conform refsd:float32 --golden g --cases silu/f32/*",
        "golden make g --dask 2",
        "conform refsd:float32 --dask tcp://127.0.0.1:8786",
        "fuzz refsd --dask local",
    ]
    run = [sys.executable, "-c", _SCRIPT, *commands]
    said = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.partition(" ")[0] for line in said[:2]] == ["0", "0"], said
    advice = "needs Dask: in refsd's clone: uv sync --extra dask"
    assert len(said) == 5 and all(advice in line for line in said[2:]), said
