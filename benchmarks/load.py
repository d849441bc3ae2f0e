"""Load a permanent store: rollouts a second, the gateway's own time, memory, and the bottleneck.

    python benchmarks/load.py [--rollouts 100000] [--flight 1000] [--runners 4] [--stores 1] \\
        [--think 0]

Every part is a process of its own, as in docs/distributed.md: `harness store`, gateway, `--runners`
times `harness runner --store`, this process, which enqueues and scores, and a scripted model. Agent:
`reference_sql`, `--turns` queries a rollout and a check between two. Prints every `--every`
rollouts: rollouts/s, processor time a rollout and cores of each side, p50 and p99 of the gateway's
own time, memory (PSS) and descriptors. At the end: whether both are flat within 5 % from the first
tenth on. With `--stores 2` every side exists twice; rollouts, flight and runners are shared.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

FLAT = 1.05
SIDES = ("store", "gateway", "runners", "main", "model")


def think(request: Any) -> Any:
    """Script the model: a wrong query, a check that rejects it, a right one, as often as needed."""
    from harness.mock_model.server import Reply

    system = str(request.messages[0]["content"])
    later = "No. It must be 2." if "You check" in system else "```sql\nSELECT 2\n```"
    text = (
        later if "You check" in system or "rewrite" in system.lower() else "```sql\nSELECT 1\n```"
    )
    return Reply(text, delay_s=float(os.environ.get("LOAD_THINK_S", "0")))


@dataclass(frozen=True)
class Used:
    """Resources that a side holds and has used."""

    cpu_s: float
    mb: float
    files: int

    @classmethod
    def of(cls, processes: Sequence[psutil.Process]) -> Used:
        """Return the sum over processes."""
        memory = sum(one.memory_full_info().pss for one in processes) / 2**20
        return cls(
            sum(sum(one.cpu_times()[:2]) for one in processes),
            memory,
            sum(one.num_fds() for one in processes),
        )


@dataclass(frozen=True)
class Mark:
    """The state after some rollouts: seconds since the start, and each side."""

    rollouts: int
    at_s: float
    calls: int
    open: int
    sides: Mapping[str, Used]


def quantiles_ms(samples: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(samples)
    return tuple(  # type: ignore[return-value]
        1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99)
    )


@contextmanager
def ended(command: Sequence[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, text=True, **more)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()


def harness(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def load(options: argparse.Namespace) -> tuple[list[Mark], array[float]]:
    """Run all sides of one store. Return a mark per `--every` rollouts, and gateway seconds."""
    from harness.config import load_config
    from harness.plugins import make_task_set
    from harness.rollout.session import Session
    from harness.rollout.stack import RolloutWork
    from harness.runs.folder import RunFolder

    marks: list[Mark] = []
    own_s: array[float] = array("d")

    class Work(RolloutWork):
        async def work(self, store: Any) -> None:
            async with self.gateway.control() as control:
                await control.set_upstreams([url], model="scripted", token_ids=True)
                session = Session(
                    config, "scripted", store, control, RunFolder(self.log_dir.parent), config.eval
                )
                numbers, done, began = iter(range(options.rollouts)), 0, time.perf_counter()
                run = session._client.run

                async def kept(*asked: Any) -> Any:
                    attempt = await run(*asked)
                    own_s.extend(call.gateway_s for call in attempt.transitions)
                    return attempt

                session._client.run = kept  # type: ignore[assignment, method-assign]

                async def mark() -> None:
                    gc.collect()
                    alive = {
                        "store": [psutil.Process(store_process.pid)],
                        "gateway": [psutil.Process(self.gateway.pid)],
                        "runners": [
                            two for one in runners for two in (one, *one.children(recursive=True))
                        ],
                        "main": [psutil.Process()],
                        "model": [psutil.Process(model.pid)],
                    }
                    sides = {name: Used.of(of) for name, of in alive.items()}
                    open_now = int((await control.stats())["open_attempts"])
                    now = time.perf_counter() - began
                    marks.append(Mark(done, now, len(own_s), open_now, sides))
                    if len(marks) > 1:
                        print(row(marks[-2], marks[-1], own_s), flush=True)

                async def lane() -> None:
                    nonlocal done
                    for number in numbers:
                        if time.perf_counter() - began > 60 * options.minutes:
                            return
                        outcome = await session.rollout(
                            tasks[number % len(tasks)].id, "val", 0, number
                        )
                        assert outcome.reward is not None, outcome.reason
                        done += 1
                        if done % options.every == 0:
                            await mark()

                await mark()
                await asyncio.gather(*(lane() for _ in range(options.flight)))

    with ExitStack() as after:
        folder = Path(after.enter_context(tempfile.TemporaryDirectory()))
        (folder / "run" / "logs").mkdir(parents=True)
        os.environ |= {
            "HARNESS_STORE_KEY": secrets.token_urlsafe(32),
            "LOAD_THINK_S": str(options.think),
        }
        script = ("-m", "harness.mock_model.server", "--script", "load:think", "--forget")
        here = os.environ | {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
        model = after.enter_context(
            ended([sys.executable, *script], stdout=subprocess.PIPE, env=here)
        )
        store_process = after.enter_context(
            ended(harness("store", "--port", "0"), stdout=subprocess.PIPE)
        )
        assert model.stdout is not None and store_process.stdout is not None
        url = f"http://127.0.0.1:{json.loads(model.stdout.readline())['port']}/v1"
        away = store_process.stdout.readline().split()[1]
        asked = {
            "runners": 0,
            "concurrency": -(-options.flight // options.runners),
            "store": away,
            "timeout_s": 3600,
        }
        overrides = [
            f"max_turns={options.turns}",
            *(f"rollout.{key}={value}" for key, value in asked.items()),
        ]
        config = load_config("cpu", agent="reference_sql", overrides=overrides)
        tasks = make_task_set(config).load("val")
        logs = after.enter_context((folder / "runners.log").open("w"))
        joins = harness("runner", "--store", away, "--logs", str(folder / "logs"))
        started = [after.enter_context(ended(joins, stderr=logs)) for _ in range(options.runners)]
        runners = [psutil.Process(one.pid) for one in started]
        Work(config, "scripted", folder / "run" / "logs", f"load-{os.getpid()}").execute()
    return marks, own_s


def row(before: Mark, now: Mark, own_s: Sequence[float]) -> str:
    """Return a table line: events between two marks, and the resources held."""
    spent_s, ended_now = now.at_s - before.at_s, now.rollouts - before.rollouts
    each = []
    for name in SIDES:
        cpu_s = now.sides[name].cpu_s - before.sides[name].cpu_s
        ms, cores = 1000 * cpu_s / ended_now, cpu_s / spent_s
        each.append(
            f"{name} {ms:.1f} ms {cores:.2f} cores {now.sides[name].mb:.1f} MB "
            f"{now.sides[name].files} files"
        )
    p50, p99 = quantiles_ms(own_s[before.calls : now.calls])
    head = (
        f"{now.rollouts:>6} {ended_now / spent_s:6.1f}/s, {now.open} open, "
        f"gateway {p50:.1f} and {p99:.0f} ms"
    )
    return f"{head} | {' | '.join(each)}"


def flat(marks: Sequence[Mark]) -> dict[str, dict[str, float]]:
    """Return each side's peak memory and descriptors after the first tenth, relative to then."""
    since = [one for one in marks if one.rollouts >= max(1, marks[-1].rollouts // 10)]
    return {
        name: {
            what: round(
                max(getattr(one.sides[name], what) for one in since)
                / getattr(since[0].sides[name], what),
                3,
            )
            for what in ("mb", "files")
        }
        for name in SIDES[:-1]
    }


def summary(marks: Sequence[Mark], own_s: Sequence[float]) -> dict[str, Any]:
    """Return totals from the first mark with rollouts on, when every process runs."""
    first, last = marks[1 if len(marks) > 2 else 0], marks[-1]
    count, spent_s = last.rollouts - first.rollouts, last.at_s - first.at_s
    cpu_s = {name: last.sides[name].cpu_s - first.sides[name].cpu_s for name in SIDES}
    return {
        "rollouts": last.rollouts,
        "rollouts_per_s": round(count / spent_s, 1),
        "gateway_ms": [round(one, 1) for one in quantiles_ms(own_s[first.calls :])],
        "calls_per_rollout": round((last.calls - first.calls) / count, 2),
        "cpu_ms_per_rollout": {
            name: round(1000 * value / count, 2) for name, value in cpu_s.items()
        },
        "cores": {name: round(value / spent_s, 2) for name, value in cpu_s.items()},
        "flat": flat(marks),
        "marks": [asdict(replace(one, at_s=round(one.at_s, 1))) for one in marks[1:]],
    }


def shared(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run several stores at once, each with all sides and a share of rollouts and runners."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as after:
        parts = []
        for number in range(options.stores):
            share = {
                name: max(1, getattr(options, name) // options.stores)
                for name in ("rollouts", "flight", "runners")
            }
            asked = share | {
                name: getattr(options, name) for name in ("every", "turns", "think", "minutes")
            }
            asked["every"] = max(1, options.every // options.stores)
            file = Path(folder) / f"{number}.json"
            words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
            command = [sys.executable, __file__, *words, "--json", str(file)]
            parts.append((file, after.enter_context(ended(command))))
        statuses = [process.wait() for _, process in parts]
        if any(statuses):
            sys.exit("a part failed: see above")
        return [json.loads(file.read_text())[0] for file, _ in parts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--flight", type=int, default=1000, help="rollouts under way")
    parser.add_argument("--runners", type=int, default=4)
    parser.add_argument("--stores", type=int, default=1)
    parser.add_argument("--every", type=int, default=2000)
    parser.add_argument(
        "--turns", type=int, default=2, help="queries a rollout, with a check between two"
    )
    parser.add_argument(
        "--think", type=float, default=0.0, help="seconds that the model takes for an answer"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="no rollout is begun after these"
    )
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    found = shared(options) if options.stores > 1 else [summary(*load(options))]
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")
    rate = sum(one["rollouts_per_s"] for one in found)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}: {rate:.1f} rollouts/s")
    for one in found:
        each = one["cpu_ms_per_rollout"]
        busiest = max(
            (name for name in each if name not in ("runners", "model")), key=each.__getitem__
        )
        print({name: value for name, value in one.items() if name != "marks"})
        print(f"{busiest} is the first to fill a core, at {1000 / each[busiest]:.0f} rollouts/s")
        worst = max(ratio for of in one["flat"].values() for ratio in of.values())
        print(
            f"{'flat' if worst <= FLAT else 'not flat'} within 5 % from the first tenth on "
            f"(at most {worst:.3f}x)"
        )


if __name__ == "__main__":
    main()
