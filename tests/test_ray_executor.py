from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, RunFailed, SourceError
from pipeline.executor import Executor, make_executor

pytestmark = pytest.mark.ray


@pytest.fixture
def executor(ray_executor: Executor) -> Executor:
    return ray_executor


def double(unit: int) -> int:
    return 2 * unit


def test_every_unit_is_run_once_in_another_process(executor: Executor) -> None:
    assert sorted(executor.map(double, range(50))) == [2 * n for n in range(50)]
    assert os.getpid() not in set(executor.map(process_id, range(4)))


def process_id(_: int) -> int:
    return os.getpid()


def test_no_units_give_no_results(executor: Executor) -> None:
    assert list(executor.map(double, [])) == []


def test_units_are_taken_as_room_becomes_free(executor: Executor) -> None:
    taken: list[int] = []

    def units() -> Iterator[int]:
        for n in range(1000):
            taken.append(n)
            yield n

    results = executor.map(double, units())
    next(results)
    assert len(taken) < 100
    results.close()  # type: ignore[attr-defined]


def threads_and_folder(_: int) -> tuple[int, int, str]:
    import pyarrow
    import torch

    return torch.get_num_threads(), pyarrow.cpu_count(), str(Path.cwd())


def test_a_worker_has_one_thread_and_the_drivers_folder(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(executor.map(threads_and_folder, range(4))) == {(1, 1, str(tmp_path))}


class Heavy:
    """Says who unpickled it."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.log = state["log"]
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")


def use(heavy: Heavy, unit: int) -> int:
    return unit


def test_what_the_function_carries_is_unpickled_once_a_worker(executor: Executor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    heavy = Heavy(log)
    list(executor.map(functools.partial(use, heavy), range(40)))
    readers = log.read_text().split()
    assert len(readers) == len(set(readers))


def fail_at_three(log: str, unit: int) -> int:
    if unit == 3:
        raise SourceError("source is empty")
    time.sleep(0.3)
    Path(log, str(unit)).touch()
    return unit


def test_a_parbake_error_arrives_as_itself_and_nothing_runs_after_it(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^source is empty$") as caught:
        list(executor.map(functools.partial(fail_at_three, str(tmp_path)), range(100)))
    assert type(caught.value) is SourceError
    finished = len(os.listdir(tmp_path))  # noqa: PTH208
    time.sleep(1)
    assert len(os.listdir(tmp_path)) == finished < 20  # noqa: PTH208


def fail_with_a_bug(_: int) -> int:
    return {}["missing"]  # type: ignore[no-any-return]


def test_any_other_error_arrives_as_itself_with_the_workers_traceback(executor: Executor) -> None:
    with pytest.raises(KeyError, match="missing") as caught:
        list(executor.map(fail_with_a_bug, [1]))
    assert "fail_with_a_bug" in "".join(caught.value.__notes__)


class UnpicklableError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")


def fail_unpicklably(_: int) -> int:
    raise UnpicklableError(1, 2)


def test_an_error_that_cannot_be_pickled_still_says_what_it_was(executor: Executor) -> None:
    with pytest.raises(RuntimeError, match="UnpicklableError: 1 2"):
        list(executor.map(fail_unpicklably, [1]))


def die_the_first_time(marks: str, unit: int) -> int:
    mark = Path(marks, str(unit))
    if unit == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def test_a_unit_whose_worker_was_killed_runs_again(executor: Executor, tmp_path: Path) -> None:
    assert sorted(executor.map(functools.partial(die_the_first_time, str(tmp_path)), range(6))) == list(range(6))
    assert os.listdir(tmp_path) == ["2"]  # noqa: PTH208


def die(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_unit_that_always_kills_its_worker_is_a_failed_run(executor: Executor) -> None:
    with pytest.raises(RunFailed, match="a Ray worker was lost 4 times"):
        list(executor.map(die, [1]))
    assert list(executor.map(double, [1])) == [2]


def test_a_function_that_the_workers_cannot_import_is_a_failed_run(executor: Executor) -> None:
    with pytest.raises(RunFailed, match="could not load a unit of work"):
        list(executor.map(double, [_Unloadable()]))  # type: ignore[list-item]


class _Unloadable:
    def __reduce__(self) -> tuple[object, ...]:
        return (_refuse_to_load, ())


def _refuse_to_load() -> object:
    raise ModuleNotFoundError("No module named 'elsewhere'")


def test_closing_an_executor_that_found_ray_running_leaves_it_running(executor: Executor) -> None:
    other = make_executor("ray")
    other.close()
    assert list(executor.map(double, [4])) == [8]


def test_a_cluster_that_is_not_there_is_a_failed_run(tmp_path: Path) -> None:
    program = "from pipeline.executor import make_executor; make_executor('ray', address='nonsense://nowhere')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "RunFailed: cannot reach the Ray cluster at nonsense://nowhere" in done.stderr


_INTERRUPTED = """
import functools, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell starts its children with SIGINT ignored
sys.path.insert(0, sys.argv[1])
from pipeline.executor import make_executor
from tests.test_ray_executor import slow
executor = make_executor("ray")
try:
    for _ in executor.map(functools.partial(slow, sys.argv[2]), range(100)):
        print("first", flush=True)
except KeyboardInterrupt:
    print("interrupted", len(list(Path(sys.argv[2]).iterdir())), flush=True)
    time.sleep(2)
    print("later", len(list(Path(sys.argv[2]).iterdir())), flush=True)
executor.close()
print("closed", flush=True)
"""


def slow(folder: str, unit: int) -> None:
    print("a worker's chatter")
    time.sleep(0.5)
    Path(folder, str(unit)).touch()


def test_an_interrupt_stops_the_workers_and_a_local_ray_is_quiet(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(root), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    lines = [line for line in out.splitlines() if line != "first"]
    assert [line.split()[0] for line in lines] == ["interrupted", "later", "closed"]
    assert lines[0].split()[1] == lines[1].split()[1]
    assert err == ""


def test_an_unknown_kind_is_refused_before_ray_is_touched() -> None:
    with pytest.raises(ConfigError):
        make_executor("Ray")
