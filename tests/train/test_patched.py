"""Changes to libraries underneath: what TransferQueue and torch's store accept once they are made."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import zmq

transfer_queue = pytest.importorskip("transfer_queue")

from harness_verl.patched import master_port, vllm_sleep  # noqa: E402
from harness_verl.patched import transfer_queue as patch  # noqa: E402

WAIT_MS = 1000
"""How long a message may take that must not arrive."""
LONG_MS = 20_000


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key file of a run, which this process is given."""
    path = tmp_path / "key"
    patch.write_key(path)
    monkeypatch.setenv(patch.KEY_FILE, str(path))
    return path


@pytest.fixture
def listening(key_file: Path) -> Iterator[tuple[Any, str]]:
    """A listening socket as TransferQueue opens it, and its address."""
    context = zmq.Context()
    socket = patch.create_keyed_socket(context, zmq.ROUTER, "127.0.0.1")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    yield socket, f"tcp://127.0.0.1:{port}"
    socket.close(linger=0)
    context.term()  # returns: the handler of handshakes ends with its context


def test_the_key_file_is_readable_by_its_owner_only(key_file: Path) -> None:
    assert key_file.stat().st_mode & 0o077 == 0
    public, secret = patch._key_pair(str(key_file))
    assert zmq.curve_public(secret) == public


def test_peers_with_the_key_of_the_run_talk(listening: tuple[Any, str]) -> None:
    server, address = listening
    context = zmq.Context()
    client = patch.create_keyed_socket(context, zmq.DEALER, "127.0.0.1", identity=b"TQ_STORAGE_1")
    client.connect(address)
    client.send_multipart([b"asked", bytes(1_000_000)])
    assert server.poll(LONG_MS)
    assert server.recv_multipart() == [b"TQ_STORAGE_1", b"asked", bytes(1_000_000)]
    server.send_multipart([b"TQ_STORAGE_1", b"answered"])
    assert client.poll(LONG_MS)
    assert client.recv_multipart() == [b"answered"]
    context.destroy(linger=0)


@pytest.mark.parametrize("knows_public_key", [False, True])
def test_peers_without_the_key_are_refused(
    listening: tuple[Any, str], key_file: Path, knows_public_key: bool
) -> None:
    server, address = listening
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    if knows_public_key:
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.curve_serverkey = patch._key_pair(str(key_file))[0]
    stranger.connect(address)
    stranger.send_multipart([b"\xc1\xfe\xed", b"pickle"])
    assert not server.poll(WAIT_MS)
    context.destroy(linger=0)


def test_a_context_that_is_destroyed_ends_its_handler_of_handshakes(key_file: Path) -> None:
    before = threading.active_count()
    context = zmq.Context()
    patch.create_keyed_socket(context, zmq.ROUTER, "127.0.0.1").bind("tcp://127.0.0.1:*")
    patch.create_keyed_socket(context, zmq.ROUTER, "127.0.0.1").bind("tcp://127.0.0.1:*")
    assert threading.active_count() == before + 1
    context.destroy(linger=0)
    assert context.closed


def test_every_socket_of_transfer_queue_is_opened_by_the_function_that_is_replaced() -> None:
    assert version("TransferQueue") == "0.1.11"
    root = Path(transfer_queue.__file__).parent
    opens = re.compile(r"\b(?:ctx|context|zmq_context|_ctx)\.socket\(|zmq\.Socket\(")
    places = {
        (str(path.relative_to(root)), line.strip())
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if opens.search(line)
    }
    assert places == {("utils/zmq_utils.py", "socket = ctx.socket(socket_type)")}


REPLACED = """
import sys
from harness_verl.patched import transfer_queue as patch
patch.require_key()
patch.require_key()
names = [name for name, module in sys.modules.items() if name.startswith("transfer_queue")
         and getattr(module, "create_zmq_socket", patch.create_keyed_socket) is not patch.create_keyed_socket]
from transfer_queue.utils import zmq_utils
assert zmq_utils.create_zmq_socket is patch.create_keyed_socket
assert patch._original() is not patch.create_keyed_socket
print(names)
"""


@pytest.mark.slow
def test_the_function_is_replaced_in_every_module(key_file: Path) -> None:
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[]"]


class Worker:
    """A worker with vLLM's assertion on the memory of the whole GPU."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message
        self.levels: list[int] = []

    def sleep(self, level: int = 1) -> None:
        self.levels.append(level)
        assert self.message is None, self.message


class Wrapper:
    """Has a worker as vLLM's `WorkerWrapperBase` has one."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker


def test_memory_that_another_process_allocates_does_not_end_a_sleep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quiet, shared = Worker(), Worker("Memory usage increased after sleeping.")
    vllm_sleep.sleep(Wrapper(quiet), level=2)
    assert not caplog.records
    vllm_sleep.sleep(Wrapper(shared), level=2)
    assert (quiet.levels, shared.levels) == ([2], [2])
    assert "other processes allocated memory" in caplog.text


def test_vllm_finds_the_patch_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    (point,) = entry_points(group="vllm.general_plugins", name="harness_sleep")
    # Executors call the methods of this class of vLLM, which is not installed here.
    worker_base = ModuleType("vllm.v1.worker.worker_base")
    vars(worker_base)["WorkerWrapperBase"] = Wrapper
    monkeypatch.setitem(sys.modules, worker_base.__name__, worker_base)
    monkeypatch.setattr(Wrapper, "sleep", None, raising=False)
    point.load()()
    shared = Worker("Memory usage increased after sleeping.")
    vars(Wrapper)["sleep"](Wrapper(shared), level=2)
    assert shared.levels == [2]


def test_any_other_assertion_of_a_sleep_is_raised() -> None:
    with pytest.raises(AssertionError, match="no allocator"):
        vllm_sleep.sleep(Wrapper(Worker("no allocator")))


def test_the_port_of_torchs_store_is_below_those_of_outgoing_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = tmp_path / "ip_local_port_range"
    ports.write_text("32768\t60999\n")
    monkeypatch.setattr(master_port, "RANGE", ports)
    assert master_port.LOWEST <= master_port.free_port() < 32768
    # One port is left below the range, and a server has it: the kernel chooses another one.
    with socket.create_server(("", master_port.free_port())) as busy:
        port = busy.getsockname()[1]
        ports.write_text(f"{port + 1}\t60999\n")
        monkeypatch.setattr(master_port, "LOWEST", port)
        assert master_port.free_port() not in (0, port)
    assert master_port.free_port() == port
    ports.write_text("1024\t65535\n")  # nothing is left below the range
    assert master_port.free_port() > 0


def test_verl_asks_for_that_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = tmp_path / "ip_local_port_range"
    ports.write_text("32768\t60999\n")
    monkeypatch.setattr(master_port, "RANGE", ports)
    base = pytest.importorskip("verl.single_controller.ray.base")
    before = base.get_master_addr_port
    try:
        master_port.install()
        host, port = base.get_master_addr_port._function()
        assert host and master_port.LOWEST <= int(port) < 32768
        given = base.get_master_addr_port._function([int(port), int(port) + 1])
        assert given[1] == port  # a range that a caller gives is verl's own
    finally:
        base.get_master_addr_port = before


STORE = """
import os, psutil, torch.distributed as distributed
from harness_policy_server import loopback_store
loopback_store.listen_on_loopback()
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
import socket
with socket.create_server(("127.0.0.1", 0)) as free:
    os.environ["MASTER_PORT"] = str(free.getsockname()[1])
distributed.init_process_group("cpu:gloo")
port = int(os.environ["MASTER_PORT"])
listening = [one.laddr for one in psutil.Process().net_connections("inet") if one.status == "LISTEN"]
print(*[address.ip for address in listening if address.port == port])
"""


def test_torchs_store_listens_on_loopback() -> None:
    done = subprocess.run([sys.executable, "-c", STORE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["127.0.0.1"]
