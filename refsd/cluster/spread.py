"""Run many small jobs on a cluster: lost workers lose nothing, and a job that ends workers is found out.

Dask runs a job again whose worker died, and gives it up (KilledWorker) when so many workers died that had it; but
they may have died of another job. So what it gives up runs once more when nothing else does, in as small pieces as
there are, and only a piece that ends workers then, too, is called crashed.
"""

import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from refsd.numerics.errors import BadInput

# Jobs that the scheduler has at once: so many for each thread of the workers, and at least so many.
_AHEAD, _LEAST = 4, 64
# Seconds without any worker that could run what is left, and between two looks at the workers.
PATIENCE = 300.0
_LOOK = 1.0
# How often all workers are asked that die before they answer.
_TRIES = 5


class Job(NamedTuple):
    """
    arguments: of the function that runs
    needs:     Dask resources that its worker must have: {"vulkan": 1}
    group:     processes of this machine take whole groups, whose jobs share a model or kernels; "" is no group
    """

    arguments: tuple
    needs: Mapping[str, float] = {}
    group: str = ""


class Ended(NamedTuple):
    """A job that ended, well or not. future: of Dask; number: of the job"""

    future: Any
    number: int
    job: Job


class NoWorkers(BadInput):
    """No worker is left that could run the remaining jobs."""


class Spread:
    """
    client:   distributed.Client
    patience: seconds to wait for a worker where none is left
    """

    def __init__(self, client: Any, patience: float = PATIENCE):
        self.client, self._patience = client, patience

    def run(
        self,
        function: Callable[..., list],
        jobs: Iterable[Job],
        crashed: Callable[[Job], list],
        split: Callable[[Job], Sequence[Job]] = lambda job: [job],
    ) -> Iterator[list]:
        """Yield function(*arguments) of each job, in the order of the jobs.

        jobs:    taken one by one, only so far ahead that no worker waits
        crashed: what a job gives that ends its workers
        split:   a job -> smaller ones, whose results together are its own

        Raises NoWorkers, and what the function raises.
        """
        waiting, next_, given_up = enumerate(jobs), 0, {}
        finished: dict[int, list] = {}
        with _Flight(self.client, function, self._patience) as flight:
            ended: list[Ended] = []
            while True:
                # New jobs first: workers need not wait for this process to fetch results.
                room = max(_LEAST, _AHEAD * flight.threads()) - flight.size
                for number, job in islice(waiting, max(room, 0)):
                    flight.submit(number, job)
                for number, job, result in flight.fetch(ended):
                    if result is None:
                        given_up[number] = job
                    else:
                        finished[number] = result
                while next_ in finished:
                    yield finished.pop(next_)
                    next_ += 1
                if not flight.size:
                    break
                ended = flight.land()
            for number, job in sorted(given_up.items()):
                finished[number] = [
                    one for piece in split(job) for one in (flight.alone(number, piece) or crashed(piece))
                ]
        for number in sorted(finished):
            yield finished[number]

    def on_every_worker(
        self, function: Callable[..., Any], *arguments: Any, needs: Mapping[str, float] = {}
    ) -> dict[str, Any]:
        """Run a function once on each worker -> address -> its value, without the workers that are lost meanwhile.

        needs: only on workers with these resources

        Raises NoWorkers, and what the function raises.
        """
        for _ in range(_TRIES):
            values = self._on_these(workers_of(self.client), function, arguments, needs)
            if values:
                return values
            self.client.wait_for_workers(1, timeout=self._patience)
        raise NoWorkers("the cluster loses its workers before they answer")

    def _on_these(
        self, workers: Mapping[str, Any], function: Callable[..., Any], arguments: tuple, needs: Mapping[str, float]
    ) -> dict[str, Any]:
        run = uuid.uuid4().hex[:8]
        futures = {
            address: self.client.submit(
                function, *arguments, key=f"refsd-every-{run}-{address}", workers=[address], pure=False
            )
            for address, worker in workers.items()
            if fits(worker, needs)
        }
        values = {}
        while futures:
            there = workers_of(self.client)
            for address, future in [*futures.items()]:
                if future.status in ("finished", "error"):
                    values[address] = future.result()
                elif address in there and future.status == "pending":
                    continue
                del futures[address]
            time.sleep(0.05)
        return values


def workers_of(client: Any) -> dict[str, Mapping[str, Any]]:
    """Address -> what the scheduler says of each worker."""
    return client.scheduler_info(n_workers=-1)["workers"]


class _Flight:
    """The jobs that the scheduler has now."""

    def __init__(self, client: Any, function: Callable[..., list], patience: float):
        self._client, self._function, self._patience = client, function, patience
        self._run, self._tries = uuid.uuid4().hex[:8], 0
        self._flying: dict[Any, tuple[int, Job]] = {}
        self._ended: queue.SimpleQueue = queue.SimpleQueue()
        self._threads, self._looked = 1, 0.0

    def __enter__(self) -> "_Flight":
        return self

    def __exit__(self, *_: Any) -> None:
        """Take back what still runs, if the caller stops early."""
        if self._flying:
            self._client.cancel([*self._flying], force=True)

    @property
    def size(self) -> int:
        return len(self._flying)

    def threads(self) -> int:
        """How many jobs all workers run at once, as of a moment ago."""
        if time.monotonic() - self._looked > _LOOK:
            self._threads = sum(worker["nthreads"] for worker in workers_of(self._client).values())
            self._looked = time.monotonic()
        return self._threads

    def submit(self, number: int, job: Job) -> None:
        self._tries += 1
        key = f"refsd-{self._run}-{number}-{self._tries}"
        future = self._client.submit(
            self._function, *job.arguments, key=key, resources=dict(job.needs) or None, pure=False
        )
        self._flying[future] = (number, job)
        future.add_done_callback(self._ended.put)

    def land(self) -> list[Ended]:
        """Wait until jobs end."""
        ended = [self._wait()]
        while not self._ended.empty():
            ended.append(self._ended.get())
        return [Ended(future, *self._flying.pop(future)) for future in ended]

    def fetch(self, ended: Sequence[Ended]) -> list[tuple[int, Job, list | None]]:
        """Fetch results -> (number, job, its result; None if the scheduler gave it up).

        A result whose worker died after it was finished is waited for: the scheduler has it computed again.
        """
        try:
            results = self._client.gather([one.future for one in ended]) if ended else []
        except Exception:  # of one of them: then one by one
            results = [self._result(one.future) for one in ended]
        return [(one.number, one.job, result) for one, result in zip(ended, results, strict=True)]

    def alone(self, number: int, job: Job) -> list | None:
        """Run one job while nothing else runs; None if it ends its workers."""
        self.submit(number, job)
        return self.fetch(self.land())[0][2]

    def _wait(self) -> Any:
        """The next future that ended. Raises NoWorkers."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._ended.get(timeout=_LOOK)
            except queue.Empty:
                there = workers_of(self._client).values()
            needs = [job.needs for _, job in self._flying.values()]
            if any(fits(worker, need) for worker in there for need in needs):
                deadline = time.monotonic() + self._patience
            elif time.monotonic() > deadline:
                left = f"{len(there)} workers, none with {dict(needs[0])}" if there else "no worker"
                raise NoWorkers(f"the cluster has {left}, for {self._patience:g} s")

    def _result(self, future: Any) -> list | None:
        """One job's result; None if the scheduler gave it up. Raises what the job raised, and NoWorkers."""
        error = future.exception()
        if error is None:
            return future.result()
        if future.status == "cancelled":
            raise NoWorkers("the connection to the scheduler is lost")
        if type(error).__name__ == "KilledWorker":  # distributed.KilledWorker
            return None
        raise error if isinstance(error, BadInput) else RuntimeError(f"on a worker: {error!r}") from error


def fits(worker: Mapping[str, Any], needs: Mapping[str, float]) -> bool:
    return all(worker["resources"].get(name, 0) >= amount for name, amount in needs.items())
