"""Run notebooks and store them with their outputs: python notebooks/execute.py [-o FOLDER] [NAME.ipynb ...]

Without -o they are stored where they are. Each runs in an empty folder of its own, with the interpreter that runs
this file. What is stored holds no path, no time stamp and no metadata; pictures are written with 128 colours, so
that a notebook stays small.
"""

import argparse
import base64
import io
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path, timeout: float = 300) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run.

    timeout: seconds for a cell, which may compile kernels
    Raises nbclient.exceptions.CellExecutionError, CellTimeoutError.
    """
    notebook = nbformat.read(path, 4)
    with tempfile.TemporaryDirectory() as folder:
        # No installed kernelspec: it could name another interpreter. No port: anybody could listen.
        specs = KernelSpecManager(kernel_dirs=[])
        manager = AsyncKernelManager(
            kernel_name="python3", kernel_spec_manager=specs, transport="ipc", ip=str(Path(folder) / "socket")
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=timeout,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute(cleanup_kc=True)
    return notebook


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs from machine to machine, and repack pictures, in place."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        for output in cell.get("outputs", []):
            output.pop("execution_count", None)
            if "data" in output:
                output.metadata = nbformat.from_dict({})
                if "image/png" in output.data:
                    output.data = nbformat.from_dict({"image/png": repack(output.data["image/png"])})


def repack(png: str) -> str:
    """A base64 PNG with at most 128 colours."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(128, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=HERE, help="folder for the notebooks with their outputs")
    parser.add_argument("names", nargs="*", metavar="NAME.ipynb", help="default: all")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for path in [HERE / name for name in asked.names] or sorted(HERE.glob("*.ipynb")):
        begun = time.perf_counter()
        notebook = execute(path)
        tidy(notebook)
        target = asked.out / path.name
        nbformat.write(notebook, target)
        took, size = time.perf_counter() - begun, target.stat().st_size
        print(f"{target}: {took:.1f} s, {size / 1024:.0f} KB", file=sys.stderr)


if __name__ == "__main__":
    main()
