"""A cluster of Slurm on this machine: munged, slurmctld and slurmd in a folder, on ports of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
CONFIGURATION = """
ClusterName=study
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
# Nothing of the kernel's: no cgroups, no binding, no accounts.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MinJobAge=86400
# What takes longer elsewhere: how soon a job that does not end is killed, and one that was submitted is looked at.
KillWait=2
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str:
    """Why there can be no cluster here; empty where there can."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root alone"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Look until a condition holds."""
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, f"it never happened: {what}"
        time.sleep(0.05)


class Cluster:
    """One node, four processors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.file)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.host = socket.gethostname().split(".")[0]

    def start(self) -> None:
        for name in ("state", "spool", "logs"):
            (self.folder / name).mkdir()
        ports = [_free_port() for _ in range(2)]
        text = CONFIGURATION.format(
            folder=self.folder, host=self.host, controller=ports[0], node=ports[1]
        )
        self.file.write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        # A folder of pytest's is its owner's alone, which munged would refuse without --force.
        where = [
            f"--{name}={self.folder}/munge.{name}"
            for name in ("socket", "pid-file", "seed-file", "log-file")
        ]
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", *where)
        wait_until((self.folder / "munge.socket").exists, "munged listens")
        self.daemon("slurmctld", "-D", "-f", str(self.file))
        self.start_node()

    def start_node(self) -> None:
        """Start slurmd and wait until the node takes jobs."""
        self.daemon("slurmd", "-D", "-f", str(self.file))
        wait_until(
            lambda: self.ask("sinfo", "--noheader", "--format=%T") == "idle", "the node is idle"
        )

    def kill_node(self) -> None:
        """What a node's sudden end is: slurmd, what it holds a job with, and the job."""
        jobs = [
            one
            for one in psutil.process_iter()
            if _of(one, self.file) and "SLURM_JOB_ID" in one.environ()
        ]
        above = {
            parent
            for one in jobs
            for parent in one.parents()
            if parent.name().startswith("slurmstepd")
        }
        self._daemons["slurmd"].kill()
        for one in (*above, *jobs):  # from above, so that nobody reports an end
            one.kill()
        self._daemons.pop("slurmd").wait()
        # What slurmctld would say of itself once the node has been silent for SlurmdTimeout.
        self.ask("scontrol", "update", f"NodeName={self.host}", "State=DOWN", "Reason=silent")

    def daemon(self, name: str, *arguments: str) -> None:
        log = (self.folder / "logs" / name).open("ab")
        command = [str(_program(name)), *arguments]
        self._daemons[name] = subprocess.Popen(
            command, env=self.environment, stdout=log, stderr=log
        )

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints; empty where it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.strip()

    def jobs(self) -> list[tuple[str, str, str]]:
        """Number, name and state of every job, the newest last."""
        lines = self.ask(
            "squeue", "--states=all", "--noheader", "--sort=i", "--format=%i|%j|%T"
        ).splitlines()
        return [tuple(line.split("|")) for line in lines]  # type: ignore[misc]

    def clear(self) -> None:
        """End every study that submits jobs here, where a test failed, and every job."""
        daemons = [one.pid for one in self._daemons.values()]
        for one in psutil.process_iter():
            if _of(one, self.file) and one.pid not in daemons and "study" in one.cmdline():
                one.kill()
        self.ask("scancel", "--user=root")
        wait_until(lambda: not self.ask("squeue", "--noheader"), "all jobs are over")

    def close(self) -> None:
        """End every job and every daemon."""
        if "slurmd" in self._daemons:
            self.clear()
        for name in reversed(self._daemons):
            self._daemons[name].terminate()
            try:
                self._daemons[name].wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._daemons[name].kill()
                self._daemons[name].wait()
        wait_until(
            lambda: not [one for one in psutil.process_iter() if _of(one, self.file)],
            "nothing is left",
        )


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that takes jobs, for as long as the block lasts."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.close()


def _of(process: psutil.Process, file: Path) -> bool:
    """Whether a process belongs to a cluster: it was started with its configuration."""
    try:
        return process.pid != os.getpid() and process.environ().get("SLURM_CONF") == str(file)
    except psutil.Error:
        return False


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
