"""Simulate a corpus on 100 Dask workers and print what limits it, from the scheduler's own numbers.

    python benchmarks/cluster_study.py [--jobs 10000] [--workers 100] [--seconds 0.2] [--slow 1]

The scheduler and the workers are real, each worker with its own connection; a job sleeps as long as a case takes:
exponentially distributed with the mean --seconds, so that a few take long. --slow workers need ten times as long.
docs/cluster.md has the figures.
"""

import argparse
import asyncio
import logging
import random
import subprocess
import sys
import threading
import time

import psutil
from distributed import Client, Worker

from refsd.cluster.spread import Job, Spread

_A_PROCESS = 25  # workers
_SLOW = 10


def case(seconds: float) -> list[float]:
    """A job: sleep, ten times as long on a slow worker -> how long."""
    from distributed import get_worker

    seconds *= _SLOW if str(get_worker().name).startswith("slow") else 1
    time.sleep(seconds)
    return [seconds]


async def serve(address: str, names: list[str]) -> None:
    """Run workers, all in this process, until the scheduler ends."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    workers = [Worker(address, nthreads=1, name=name, dashboard=False, memory_limit=0) for name in names]
    await asyncio.gather(*workers)
    await asyncio.gather(*(worker.finished() for worker in workers))


def cpu(dask_scheduler) -> float:
    """CPU seconds of the scheduler's process."""
    return time.process_time()


def transitions(dask_scheduler) -> int:
    """How many times the scheduler has changed the state of a task."""
    return dask_scheduler.transition_counter


def study(jobs: int, workers: int, seconds: float, slow: int) -> None:
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--no-show"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert scheduler.stderr is not None
    lines = iter(scheduler.stderr.readline, "")
    address = next(line.split()[-1] for line in lines if "Scheduler at:" in line)
    threading.Thread(target=lambda: [*lines], daemon=True).start()  # a full pipe would stop the scheduler
    names = [f"slow-{i}" if i < slow else f"worker-{i}" for i in range(workers)]
    parts = [names[i : i + _A_PROCESS] for i in range(0, workers, _A_PROCESS)]
    served = [subprocess.Popen([sys.executable, __file__, "--serve", address, *part]) for part in parts]
    try:
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=120)
            drawn = random.Random(1)
            durations = [drawn.expovariate(1 / seconds) if seconds else 0.0 for _ in range(jobs)]
            theirs = sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in served)
            before, own_before, begun = client.run_on_scheduler(cpu), time.process_time(), time.perf_counter()
            asked = (Job((duration,)) for duration in durations)
            busy = sum(one[0] for one in Spread(client).run(case, asked, crashed=lambda job: [0.0]))
            took = time.perf_counter() - begun
            theirs = sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in served) - theirs
            used, own = client.run_on_scheduler(cpu) - before, time.process_time() - own_before
            changes = client.run_on_scheduler(transitions)
        print(f"{jobs} jobs of {seconds} s on {workers} workers, {slow} of them ten times slower")
        best = sum(durations) / (workers - 0.9 * slow)
        print(f"  took {took:.1f} s: {jobs / took:.0f} jobs/s; at best {best:.1f} s")
        print(f"  workers busy {busy / took / workers:.0%}")
        print(f"  scheduler: {1e3 * used / jobs:.2f} ms of CPU a job, {used / took:.0%} of a core")
        print(f"  client:    {1e3 * own / jobs:.2f} ms of CPU a job, {own / took:.0%} of a core")
        print(
            f"  workers:   {1e3 * theirs / jobs:.2f} ms of CPU a job, {theirs / took:.0%} of a core for all of them"
        )
        print(f"  scheduler: {changes / jobs:.1f} changes of a task's state a job", flush=True)
    finally:
        for process in (*served, scheduler):
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve[0], given.serve[1:]))
    else:
        study(given.jobs, given.workers, given.seconds, given.slow)
