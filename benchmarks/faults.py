"""Break real trainings on this machine, one fault each, and print what happened as a table.

    python benchmarks/faults.py [--only NAME ...] [--list]

Each line is one `harness train` of three small steps on the CPU, with one fault while rollouts of
the first step are under way (or where the line says). The table records how it ended, how long
after, its message, and leftovers: processes, shared memory, temporary files. A run that can resume
is resumed, and must then finish. Exits with status 1 if a run ended in an unexpected way. Takes
half an hour on two cores. A second table has the faults without a training, which tests cover
(`fault_tests.py`).
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import zmq
from fault_tests import FAULT_TESTS, run_fault_tests

STEPS = [
    *(
        "--plugin",
        "reference_sql",
        "--steps",
        "3",
        "--set",
        "device=cpu",
        "--set",
        "train.batch_size=4",
    ),
    *("--set", "task.val_limit=8", "--set", "train.val_every=1", "--set", "train.save_every=1"),
    *("--set", "rollout.timeout_s=60"),
]
LIMIT_S = 600.0
KEPT = {"pocket", "starts.json"}
"""Files in harness's cache that a first run leaves for later ones, by design."""
REWARD = """
from harness.contracts.hookspecs import RewardSpec, hookimpl
from harness.records import Verdict
HARNESS_API = 1

@hookimpl
def harness_rewards():
    return [RewardSpec("not_a_number", "faulty:NotANumber", "NaN for every answer.")]

class NotANumber:
    version = "not_a_number/1"

    async def score(self, task, attempt):
        return Verdict(float("nan"), "not a number")
"""
AGENT = """
import subprocess, sys
from harness.contracts.hookspecs import AgentSpec, hookimpl
from harness_sql.self_correcting.reference import ReferenceSQL
HARNESS_API = 1

@hookimpl
def harness_agents():
    more = {"roles": ReferenceSQL.roles, "program": "self_correcting_sql"}
    return [AgentSpec("leaves_sleepers", "faulty:LeavesSleepers", "Leaves processes.", **more)]

class LeavesSleepers(ReferenceSQL):
    async def solve(self, problem, toolbox):
        command = [sys.executable, "-c", "import time; time.sleep(987)"]
        subprocess.Popen(command, env={}, start_new_session=True)
        return await super().solve(problem, toolbox)
"""
SHOUTING_AGENT = """
import itertools
from harness.contracts.hookspecs import AgentSpec, hookimpl
from harness_sql.self_correcting.reference import ReferenceSQL
HARNESS_API = 1

@hookimpl
def harness_agents():
    more = {"roles": ReferenceSQL.roles, "program": "self_correcting_sql"}
    return [AgentSpec("shouts", "faulty:Shouts", "Sends a message of 20 MB.", **more)]

class Shouts(ReferenceSQL):
    rollouts = itertools.count()

    async def solve(self, problem, toolbox):
        if next(self.rollouts) == 0:
            message = {"role": "user", "content": "a b " * 5_000_000}
            await toolbox.llm(min(self.roles)).complete(toolbox.http_client, [message])
        return await super().solve(problem, toolbox)
"""
CODE_FOLLOWS = b"\xc1\xfe\xed"
"""First frame of a message of which TransferQueue 0.1.11 unpickles the second frame."""


class KillsProcess:
    """Unpickled, it kills the process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return eval, ("__import__('os').kill(__import__('os').getpid(), 9)",)


@dataclass
class Training:
    """A training under way in a folder of its own."""

    folder: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def run(self) -> Path | None:
        return next((path for path in (self.folder / "runs").glob("*") if path.is_dir()), None)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return the run's processes with all these words in their command lines."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                mine = (
                    self.run is not None
                    and f"HARNESS_RUN_MARK={self.run.name}".encode() in environment
                )
                line = " ".join(process.cmdline())
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and mine
                    and all(word in line for word in words)
                ):
                    found.append(process)
        return found

    def wait(self, condition: Callable[[], object], look_s: float = 0.1) -> None:
        ends = time.monotonic() + LIMIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"it never came to that: {self.last_line()}")
            time.sleep(look_s)

    def rows(self, phase: str, step: int) -> int:
        """Return the number of episodes of a phase and step so far."""
        texts = [
            file.read_text(errors="replace")
            for file in (self.run or self.folder).glob("logs/episodes-*.jsonl")
        ]
        lines = [line for text in texts for line in text.splitlines() if line.endswith("}")]
        return sum(row["phase"] == phase and row["step"] == step for row in map(json.loads, lines))

    def last_line(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return next(
            (line for line in reversed(lines) if line.startswith("harness: ")),
            lines[-1] if lines else "nothing",
        )

    @property
    def status(self) -> str:
        return (
            str(json.loads((self.run / "run.json").read_text())["status"]) if self.run else "no run"
        )


@dataclass(frozen=True)
class Fault:
    """One fault of a training.

    Attributes:
        description: Text for the table.
        act: Causes the fault; None where the training's surroundings are the fault.
        ends: The status of the run afterwards.
        arguments: Further arguments of the training.
        resumes: Whether the run can resume and then finishes.
        limits: `resource.RLIMIT_*` of the training.
        before: Prefix of its command.
        message: A part of its message.
    """

    description: str
    act: Callable[[Training], None] | None
    ends: str
    arguments: tuple[str, ...] = ()
    resumes: bool = True
    limits: dict[int, int] = field(default_factory=dict)
    variables: Callable[[Path], dict[str, str]] = lambda folder: {}
    within_s: float = 30.0
    before: Callable[[Path], tuple[str, ...]] = lambda folder: ()
    message: str = ""


def in_step_one(training: Training) -> None:
    training.wait(lambda: training.rows("train", 1))


def kill(*words: str, number: int = signal.SIGKILL) -> Callable[[Training], None]:
    def act(training: Training) -> None:
        in_step_one(training)
        found = training.processes(*words)
        if not found:
            lines = [" ".join(process.cmdline())[:120] for process in training.processes()]
            raise RuntimeError(f"no process {words} among {lines}")
        for process in found:
            process.send_signal(number)

    return act


def attack_queue(training: Training) -> None:
    """Send code to every port of TransferQueue, and refuse listeners that other machines reach.

    Code that is executed kills an actor, which ends the run.
    """
    in_step_one(training)
    context = zmq.Context()
    attacked = 0
    for process in training.processes():
        title = " ".join(process.cmdline())
        for connection in process.net_connections("inet"):
            if connection.status != psutil.CONN_LISTEN:
                continue
            address = ipaddress.ip_address(connection.laddr.ip.removeprefix("::ffff:"))
            if not address.is_loopback:
                raise RuntimeError(f"{title[:80]} listens at {connection.laddr}")
            if "TransferQueueController" in title or "SimpleStorageUnit" in title:
                stranger = context.socket(zmq.DEALER)
                stranger.identity = b"TQ_STORAGE_stranger"
                # What a refused peer still has to send must not hold up the end.
                stranger.linger = 0
                stranger.connect(f"tcp://127.0.0.1:{connection.laddr.port}")
                stranger.send_multipart([CODE_FOLLOWS, pickle.dumps(KillsProcess())])
                attacked += 1
    time.sleep(1)
    context.destroy(linger=0)
    if not attacked:
        raise RuntimeError("no port of TransferQueue was found")


def signalled(
    number: int, when: Callable[[Training], object], look_s: float = 0.1
) -> Callable[[Training], None]:
    def act(training: Training) -> None:
        training.wait(lambda: when(training), look_s)
        training.process.send_signal(number)

    return act


def saving(training: Training) -> bool:
    folders = list((training.run or training.folder).glob("checkpoints/global_step_1"))
    return bool(folders) and not (folders[0].parent / "latest_checkpointed_iteration.txt").exists()


def reporting(training: Training) -> bool:
    return training.rows("val", 3) == 8


def faulty(text: str) -> Callable[[Path], dict[str, str]]:
    """Make a fault from a plugin's text next to the training."""

    def variables(folder: Path) -> dict[str, str]:
        info = folder / "plugin" / "faulty-0.1.dist-info"
        info.mkdir(parents=True)
        (folder / "plugin" / "faulty.py").write_text(text)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text("[harness]\nfaulty = faulty\n")
        return {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(info.parent), os.environ.get("PYTHONPATH")])
            )
        }

    return variables


CLOCK = """
import os, time

def shifted(real, per_s):
    def now():
        try:
            with open(os.environ["CLOCK"]) as file:
                return real() + int(file.read()) * per_s
        except Exception:
            return real()
    return now

time.time, time.time_ns = shifted(time.time, 1), shifted(time.time_ns, 10**9)
"""
"""Every Python process of a run imports it first."""


def faked(folder: Path) -> dict[str, str]:
    """Return variables for a wall clock that is wrong by the seconds in a file."""
    (folder / "sitecustomize.py").write_text(CLOCK)
    (folder / "clock").write_text("0")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "CLOCK": str(folder / "clock")}


def jump(by_s: int) -> Callable[[Training], None]:
    def act(training: Training) -> None:
        in_step_one(training)
        (training.folder / "clock").write_text(str(by_s))

    return act


def mounted(size: str, place: Callable[[Path], str]) -> Callable[[Path], tuple[str, ...]]:
    """Mount a small tmpfs in a place that only the command sees."""

    def before(folder: Path) -> tuple[str, ...]:
        script = f'mount -t tmpfs -o size={size} tmpfs {place(folder)} && exec "$@"'
        return (
            "unshare",
            *(["--map-root-user"] if os.geteuid() else []),
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        )

    return before


def read_only_home(folder: Path) -> tuple[str, ...]:
    """Make a home in which nothing can be written, even by root."""
    home = folder / "home"
    home.mkdir()
    return mounted("1m,ro", lambda _: str(home))(folder)


def small(folder: Path) -> str:
    """Return a folder for temporary files with a name short enough for Ray's sockets."""
    place = Path("/tmp") / f"small-{os.getpid()}"
    place.mkdir(exist_ok=True)
    return str(place)


def as_other_user(folder: Path) -> tuple[str, ...]:
    """Run as another user: a limit of processes does not apply to root."""
    if os.geteuid():
        return ()
    for path in (folder.parent, folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)
    reads = (
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
    )  # wherever the interpreter is
    return (
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        *reads,
        "env",
        f"HOME={folder}",
    )


FAULTS = {
    "policy-server": Fault(
        "policy server killed",
        kill("VerlPolicyServer"),
        "failed",
        message="policy server VerlPolicyServer",
    ),
    "loop-worker": Fault("verl's agent-loop worker killed", kill("AgentLoopWorker"), "failed"),
    "task-runner": Fault("verl's task runner killed", kill("ray::TaskRunner"), "failed"),
    "trainer": Fault("verl's training worker killed", kill("WorkerDict"), "failed"),
    "queue": Fault("TransferQueue's storage killed", kill("SimpleStorage"), "failed"),
    "gcs": Fault("Ray's GCS killed", kill("gcs_server"), "failed"),
    "raylet": Fault("Ray's raylet killed", kill("raylet/raylet"), "failed"),
    "driver": Fault("verl's driver killed", kill("verl.driver"), "failed"),
    "gateway": Fault("gateway killed", kill("harness.gateway"), "failed"),
    "runner": Fault(
        "runner killed", kill("harness.rollout.worker"), "finished", resumes=False, within_s=LIMIT_S
    ),
    "stopped-runner": Fault(
        "runner stopped (SIGSTOP)",
        kill("harness.rollout.worker", number=signal.SIGSTOP),
        "finished",
        ("--set", "rollout.timeout_s=10"),
        resumes=False,
        within_s=LIMIT_S,
    ),
    "itself": Fault(
        "the run itself killed",
        signalled(signal.SIGKILL, lambda one: one.rows("train", 1)),
        "running",
    ),
    "term-validation": Fault(
        "SIGTERM in the first validation",
        signalled(signal.SIGTERM, lambda one: one.rows("val", 0)),
        "interrupted",
    ),
    "int-saving": Fault(
        "SIGINT while a checkpoint is saved",
        signalled(signal.SIGINT, saving, look_s=0.005),
        "interrupted",
    ),
    "hup-step": Fault(
        "SIGHUP in a step",
        signalled(signal.SIGHUP, lambda one: one.rows("train", 2)),
        "interrupted",
    ),
    "term-end": Fault(
        "SIGTERM at the end of the last validation",
        signalled(signal.SIGTERM, reporting),
        "interrupted",
    ),
    "processes": Fault(
        "at most 150 processes and threads",
        None,
        "failed",
        limits={resource.RLIMIT_NPROC: 150},
        before=as_other_user,
        message="ulimit -u",
        resumes=False,
        within_s=LIMIT_S,
    ),
    "files": Fault(
        "at most 64 open files a process",
        None,
        "failed",
        limits={resource.RLIMIT_NOFILE: 64},
        within_s=LIMIT_S,
    ),
    "clock-forward": Fault(
        "clock set forward an hour",
        jump(3600),
        "finished",
        resumes=False,
        variables=faked,
        within_s=LIMIT_S,
    ),
    "clock-back": Fault(
        "clock set back an hour",
        jump(-3600),
        "finished",
        resumes=False,
        variables=faked,
        within_s=LIMIT_S,
    ),
    "shared-memory": Fault(
        "/dev/shm of 16 MiB",
        None,
        "finished",
        resumes=False,
        before=mounted("16m", lambda folder: "/dev/shm"),
        within_s=LIMIT_S,
    ),
    "small-temporary": Fault(
        "TMPDIR of 4 MiB",
        None,
        "finished",
        resumes=False,
        before=mounted("4m", small),
        variables=lambda folder: {"TMPDIR": small(folder), "RAY_TMPDIR": ""},
        within_s=LIMIT_S,
    ),
    "no-temporary": Fault(
        "TMPDIR of 512 KiB, /dev/shm of 1 MiB",
        None,
        "failed",
        before=lambda folder: (
            *mounted("512k", small)(folder),
            *mounted("1m", lambda _: "/dev/shm")(folder),
        ),
        variables=lambda folder: {"TMPDIR": small(folder), "RAY_TMPDIR": ""},
        message="set TMPDIR",
        within_s=LIMIT_S,
    ),
    "temporary-files": Fault(
        "TMPDIR names a folder that is not there",
        None,
        "finished",
        resumes=False,
        within_s=LIMIT_S,
        variables=lambda folder: {"TMPDIR": str(folder / "nowhere"), "RAY_TMPDIR": ""},
    ),
    "home": Fault(
        "HOME is read-only",
        None,
        "no run",
        resumes=False,
        before=read_only_home,
        message="HARNESS_CACHE_DIR",
        variables=lambda folder: {
            "HOME": str(folder / "home"),
            "HARNESS_CACHE_DIR": "",
            "XDG_CACHE_HOME": "",
            "HF_HOME": "",
        },
        within_s=LIMIT_S,
    ),
    "home-cache": Fault(
        "HOME is read-only, HARNESS_CACHE_DIR is not",
        None,
        "finished",
        resumes=False,
        before=read_only_home,
        variables=lambda folder: {
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": "",
            "HF_HOME": "",
        },
        within_s=LIMIT_S,
    ),
    "nan": Fault(
        "every reward is NaN",
        None,
        "failed",
        ("--set", "reward.name=not_a_number"),
        resumes=False,
        variables=faulty(REWARD),
        within_s=LIMIT_S,
    ),
    "sleepers": Fault(
        "each rollout leaves a process, environment emptied, session of its own",
        None,
        "finished",
        ("--plugin", "leaves_sleepers"),
        resumes=False,
        variables=faulty(AGENT),
        within_s=LIMIT_S,
    ),
    "stranger": Fault(
        "another user sends code to TransferQueue's ports",
        attack_queue,
        "finished",
        resumes=False,
        within_s=LIMIT_S,
    ),
    "shout": Fault(
        "a rollout sends a message of 20 MB",
        None,
        "finished",
        ("--plugin", "shouts"),
        resumes=False,
        variables=faulty(SHOUTING_AGENT),
        within_s=LIMIT_S,
    ),
    "nothing": Fault("nothing", None, "finished", resumes=False, within_s=LIMIT_S),
}


@contextmanager
def training(fault: Fault) -> Iterator[Training]:
    folder = Path(tempfile.mkdtemp(prefix="training-"))
    (folder / "runs").mkdir()

    def limited() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where this command is run by `nohup`
        for name, value in fault.limits.items():
            resource.setrlimit(name, (value, value))

    harness = [sys.executable, "-m", "harness", "train"]
    variables = fault.variables(folder)
    command = [
        *fault.before(folder),
        *harness,
        "--runs-dir",
        str(folder / "runs"),
        *STEPS,
        *fault.arguments,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=os.environ | variables,
            cwd=folder,
            preexec_fn=limited,
            start_new_session=True,
        )
    one = Training(folder, process, folder / "log")
    try:
        yield one
    finally:
        alive: list[subprocess.Popen[bytes] | psutil.Process] = [process, *one.processes()]
        for left in alive:
            with suppress(psutil.Error, OSError):
                left.kill()
        shutil.rmtree(folder, ignore_errors=True)


def leftovers() -> set[str]:
    """Return shared memory, temporary files, harness's cache, and sleeping orphans of the agent."""
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    found = {str(path) for place in places if place.is_dir() for path in place.iterdir()}
    # The cache of these trainings alone: other programs of the machine write to the user's.
    cache = Path(os.environ["HARNESS_CACHE_DIR"])
    found |= {str(path) for path in cache.glob("*") if path.name not in KEPT}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if "time.sleep(987)" in " ".join(process.cmdline()):
                found.add(f"process {process.pid}")
    return {name for name in found if "/training-" not in name}


def attempt(name: str, fault: Fault) -> bool:
    """Print one line of the table, and return whether the run ended as expected."""
    before = leftovers()
    with training(fault) as one:
        began = time.monotonic()
        try:
            if fault.act is not None:
                fault.act(one)
                began = time.monotonic()
            one.process.wait(LIMIT_S)
            took = time.monotonic() - began
            message, status = one.last_line(), one.status
            ends = time.monotonic() + 12
            while (left := one.processes()) and time.monotonic() < ends:
                time.sleep(0.2)
            well = (
                status == fault.ends
                and took <= fault.within_s
                and not left
                and fault.message in message
            )
            well = well and "Traceback" not in one.log.read_text(errors="replace")
            ending = f"{status}, {took:.0f} s"
            if fault.resumes and one.run is not None:
                done = subprocess.run(
                    [sys.executable, "-m", "harness", "train", "--resume", str(one.run)],
                    capture_output=True,
                    text=True,
                )
                well = well and done.returncode == 0 and one.status == "finished"
                ending += f"; resumed: {one.status}"
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            message, ending, left, well = str(error), "not tried", [], False
        here = str(one.folder)
        # Names of runs and folders differ each time and carry no information.
        message = message.replace(str(one.run), "RUN") if one.run is not None else message
    kept = sorted(leftovers() - before)
    more = f"{len(left)} processes" if left else ", ".join(kept[:3]) or "nothing"
    message = " ".join(message.removeprefix("harness: ").replace(here, "").split())[:240].replace(
        "|", "/"
    )
    print(
        f"| {fault.description} | {ending} | {message} | {more} | {'yes' if well else '**no**'} |",
        flush=True,
    )
    return well


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*FAULTS, *FAULT_TESTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--list", action="store_true", help="the names alone")
    options = parser.parse_args()
    if options.list:
        print("\n".join(names))
        return
    trainings = [name for name in options.only if name in FAULTS]
    tested = [name for name in options.only if name in FAULT_TESTS]
    results = break_trainings(trainings) if trainings else []
    if trainings and tested:
        print()
    results += run_fault_tests(tested) if tested else []
    sys.exit(0 if all(results) else 1)


def break_trainings(names: list[str]) -> list[bool]:
    """Break one training after another, print a line each, and return which ended as expected."""
    scratch = tempfile.mkdtemp(
        prefix="faults-"
    )  # so that other programs' temporary files are not among what was left
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    os.environ["HARNESS_CACHE_DIR"] = tempfile.mkdtemp(prefix="faults-cache-", dir="/tmp")
    print(
        "| what was done | how it ended, how long after | what it printed | what was left "
        "| as it should |"
    )
    print("|---|---|---|---|---|", flush=True)
    try:
        before = leftovers()
        results = [attempt(name, FAULTS[name]) for name in names]
        kept = sorted(leftovers() - before)
        if len(results) > 1:
            description = f"all {len(results)} of these, one after the other"
            left = ", ".join(kept[:3]) or "nothing"
            print(f"| {description} | | | {left} | {'**no**' if kept else 'yes'} |", flush=True)
            results.append(not kept)
    finally:
        for folder in (scratch, small(Path(scratch)), os.environ["HARNESS_CACHE_DIR"]):
            shutil.rmtree(folder, ignore_errors=True)
    return results


if __name__ == "__main__":
    main()
