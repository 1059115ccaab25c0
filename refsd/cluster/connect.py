"""Connect to a Dask cluster, or start one on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refsd.golden.wording import how_to_install
from refsd.numerics.errors import BadInput
from refsd.numerics.processor import usable_cores

# Of a cluster on this machine: how many workers a task may end before the scheduler gives it up, less one.
_FAILURES = 1
# How long Dask waits for a worker of its own that died and is started again; then it goes on with fewer. By its
# own default these are 15 s, which a start on a busy machine takes.
_RESTART = "10 minutes"
_CONNECT = 60.0  # seconds
# How long a worker may stay silent, stopped or hung; then its jobs run elsewhere. Compiling takes seconds of that.
_SILENT = "60 s"
# Each worker computes in so many threads, for several workers share the cores.
_THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def connected(where: str, silent: str = _SILENT, **options: Any) -> Iterator[Any]:
    """Yield a distributed.Client with at least one worker.

    where:   "tcp://HOST:PORT" of a scheduler; "local": a worker for each core of this machine; "3": so many
    silent:  of a cluster on this machine: how long a worker may send nothing
    options: of a cluster on this machine, as distributed.LocalCluster takes them

    Raises BadInput for another text, without Dask, and if no scheduler or no worker answers.
    """
    if where != "local" and "://" not in where and not (where.isdecimal() and int(where)):
        raise BadInput(f"--dask {where}: expected a scheduler as tcp://HOST:8786, or local, or a number of workers")
    try:
        import dask
        import distributed
    except ImportError:
        raise BadInput(f"--dask {where}: needs Dask: {how_to_install('dask')}") from None
    if "://" in where:
        try:
            client = distributed.Client(where, timeout=_CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise BadInput(f"--dask {where}: no scheduler answers: {' '.join(str(error).split())}") from None
        with client:
            _wait(client, where)
            yield client
        return
    cores = usable_cores()
    workers = cores if where == "local" else int(where)
    threads = dict.fromkeys(_THREADS, str(max(1, cores // workers)))
    settings = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "env": threads}
    settings |= {"memory_limit": 0, "silence_logs": "CRITICAL"}
    with (
        dask.config.set(
            {
                "distributed.scheduler.allowed-failures": _FAILURES,
                "distributed.deploy.lost-worker-timeout": _RESTART,
                "distributed.scheduler.worker-ttl": silent,
            }
        ),
        distributed.LocalCluster(**(settings | options)) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        _wait(client, where, workers)
        yield client


def _wait(client: Any, where: str, workers: int = 1) -> None:
    try:
        client.wait_for_workers(workers, timeout=_CONNECT)
    except TimeoutError:
        raise BadInput(
            f"--dask {where}: the cluster has no worker: start some with `dask worker {where}`"
        ) from None
