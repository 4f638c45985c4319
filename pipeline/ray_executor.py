"""Run units as Ray tasks: the only file that imports ray.

    units ──► at most 2 tasks per CPU in flight, one CPU and one thread each ──► results as they complete

Tasks and not actors: a unit holds no state worth keeping, and Ray runs the task of a crashed worker again by itself.
A worker returns an exception as a value, so that it arrives as itself and not wrapped in Ray's own.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # older Rays warn about what they will do later
import ray
from ray.exceptions import RayError, RayTaskError

from pipeline.errors import ParbakeError, RunFailed

__all__ = ["RayExecutor"]

Unit = TypeVar("Unit")
Result = TypeVar("Result")

_TASKS_PER_CPU = 2  # one running, one waiting, so that no CPU waits for the driver
_MAX_RETRIES = 3  # of a task whose worker crashed
_OBJECT_STORE_BYTES = 256 << 20  # of a local Ray: units and results are small
_CANCEL_WAIT_S = 60.0
_LOOK_AGAIN_S = 5.0  # a cluster may have grown while no unit was finished


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception raised by a unit, carried home as a value."""

    error: Exception
    traceback: str


class RayExecutor:
    """Runs units on a Ray cluster, or on a local Ray that it starts and ends.

    A Ray that is already initialised in this process is used as it is and left running.
    """

    def __init__(self, address: str | None = None) -> None:
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _start(address or os.environ.get("RAY_ADDRESS"))

    def map(self, function: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]:
        """See `Executor.map`. `units` is consumed as room becomes free, never all at once."""
        # By reference, in a list: Ray would otherwise unpickle it (a tokenizer, say) anew for every task.
        shared = [ray.put(function)]
        task = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(_run)
        waiting = iter(units)
        folder = os.getcwd()  # noqa: PTH109
        running: list[Any] = []
        try:
            while True:
                room = max(0, _max_in_flight() - len(running))
                running += [task.remote(shared, unit, folder) for unit in islice(waiting, room)]
                if not running:
                    return
                ready, running = ray.wait(running, num_returns=1, timeout=_LOOK_AGAIN_S)
                for reference in ready:
                    yield cast("Result", _result(reference))
        finally:
            _cancel(running)

    def close(self) -> None:
        """End the Ray that this executor started."""
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()


def _start(address: str | None) -> None:
    """Join the cluster at `address`, or start a Ray on this machine for this process alone."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        else:
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _system_config={"task_oom_retries": _MAX_RETRIES},  # Ray's own default is for ever
            )
    except (RayError, OSError, RuntimeError, ValueError) as error:
        where = f"reach the Ray cluster at {address}" if address else "start Ray on this machine"
        raise RunFailed(
            f"cannot {where}: {error}. Without it no unit can run; nothing was written. "
            "Check the cluster (RAY_ADDRESS), or bake in one process with --executor inline."
        ) from error


def _max_in_flight() -> int:
    """Asked anew each time, because a cluster may grow; waiting tasks are what makes an autoscaler let it."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return _TASKS_PER_CPU * max(1, int(resources.get("CPU", 1)))


def _result(reference: Any) -> object:
    """What a unit returned; raises what it raised, as itself."""
    try:
        outcome = ray.get(reference)
    except RayTaskError as error:  # outside the unit: its function or its arguments could not be loaded there
        raise RunFailed(
            f"a Ray worker could not load a unit of work: {error.cause}. No unit can run there. Give every node the "
            "same code and dependencies, for example with `ray job submit --working-dir . -- python -m pipeline …`."
        ) from error
    except RayError as error:
        raise RunFailed(
            f"a Ray worker was lost {_MAX_RETRIES + 1} times on one unit of work ({type(error).__name__}: "
            f"{str(error).strip().splitlines()[0]}). The unit is not done. Look for a lack of memory or a dying node, "
            "then run the same command again: finished units are kept."
        ) from error
    if isinstance(outcome, _Failure):
        if not isinstance(outcome.error, ParbakeError):
            outcome.error.add_note(f"Raised in a Ray worker:\n{outcome.traceback}")
        raise outcome.error
    return outcome


def _cancel(references: list[Any]) -> None:
    """Interrupt units and wait until none runs any more, so that none writes after the caller has gone on."""
    if references and ray.is_initialized():
        for reference in references:
            ray.cancel(reference)
        ray.wait(references, num_returns=len(references), timeout=_CANCEL_WAIT_S)


# ---- in the worker

_function: tuple[str, Callable[[Any], Any]] | None = None


def _run(shared: list[Any], unit: Any, folder: str) -> object:
    """Run one unit in the driver's folder, on one thread."""
    global _function  # the last function this worker ran, by its reference
    (reference,) = shared
    if _function is None or _function[0] != reference.hex():
        _function = (reference.hex(), ray.get(reference))
    if os.path.isdir(folder):  # noqa: PTH112 (on another node there may be none)
        os.chdir(folder)
    if "torch" in sys.modules:  # Ray itself sets OMP_NUM_THREADS=1 for what is loaded later
        sys.modules["torch"].set_num_threads(1)
    try:
        return _function[1](unit)
    except Exception as error:  # noqa: BLE001 (carried home whole, and raised there)
        return _Failure(_picklable(error), traceback.format_exc())


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 (whatever an error's own pickling raises)
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
