"""Several "hosts" on one machine: network namespaces joined by bridges, every link's rate set with `tc ... tbf`.

    with shaped_network([Host("h0", "200mbit"), Host("h1", "200mbit")]) as network:
        network.run(["python", "train.py"], ranks_per_host=[2, 2], timeout_s=120)

Hosts may sit in racks, whose uplinks are shaped too. Bridges live in a namespace of their own, so nothing of the
machine's own network is touched; everything carries one random prefix and is removed on the way out, also after a
failure. Needs root: `why_not()` says what is missing.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_QUEUE = "200ms"
_AT_ONCE = 16_384
"""Bytes that go through the queues as one, as a network card would cut them up: else every frame takes its turn on the
cores that the ranks compute on. The queues count the frames all the same."""
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True, slots=True)
class Host:
    """A host's name, the rate of its link (tc's notation), and its rack if it has one."""

    name: str
    rate: str
    rack: str | None = None


def why_not() -> str | None:
    """Why namespaces cannot be made here, or None if they can."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    probe = f"mw{secrets.token_hex(2)}"
    try:
        _sh(f"ip netns add {probe}")
    except (subprocess.SubprocessError, OSError) as error:
        return f"cannot make a network namespace: {error}"
    try:
        _shape(probe, "lo", "1gbit")
    except (subprocess.SubprocessError, OSError) as error:
        return f"cannot shape a link with tc tbf: {error}"
    finally:
        _sh(f"ip netns del {probe}")
    return None


def _sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=20)


class ShapedNetwork:
    """A running network; `run` starts ranks in its hosts."""

    def __init__(self, prefix: str, hosts: Sequence[Host]) -> None:
        self.prefix, self.hosts = prefix, list(hosts)
        self.switch = f"{prefix}sw"

    def namespace(self, host: Host) -> str:
        return f"{self.prefix}{host.name}"

    def address(self, index: int) -> str:
        return f"10.77.0.{index + 1}"

    def run(
        self, command: Sequence[str], ranks_per_host: Sequence[int], timeout_s: float, threads: int = 1
    ) -> list[str]:
        """Start `command` once per rank, as torchrun would (RANK, WORLD_SIZE, ...); each rank's output.

        A rank that fails, or the time limit, ends them all and raises with the output of the ranks.
        """
        world, port = sum(ranks_per_host), 29000 + secrets.randbelow(2000)
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        with tempfile.TemporaryDirectory() as folder:
            try:
                for number, (host, local) in enumerate(zip(self.hosts, ranks_per_host, strict=True)):
                    for local_rank in range(local):
                        rank = len(running)
                        log = Path(folder) / f"rank{rank}"
                        environment = os.environ | {
                            "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local_rank),
                            "LOCAL_WORLD_SIZE": str(local), "MASTER_ADDR": self.address(0), "MASTER_PORT": str(port),
                            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": str(threads),
                        }  # fmt: skip
                        running.append(
                            (self._start(host, cores_of_host(number, len(self.hosts)), command, environment, log), log)
                        )
                self._wait(running, timeout_s)
                return [log.read_text() for _, log in running]
            finally:
                for process, _ in running:
                    _end(process)

    def _start(
        self, host: Host, cores: str, command: Sequence[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        # A UTS namespace of its own gives the host a name of its own, which is how ranks know their host.
        ready = f'{_same_priority()}hostname {host.name} && exec taskset -c {cores} "$@"'
        inner = ["unshare", "--uts", "sh", "-c", ready, "sh", *command]
        with log.open("wb") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace(host), *inner],
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, running: list[tuple[subprocess.Popen[bytes], Path]], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            over = all(process.poll() is not None for process, _ in running)
            failed = [i for i, (process, _) in enumerate(running) if process.poll() not in (None, 0)]
            if failed or time.monotonic() > deadline:
                what = f"rank {failed[0]} failed" if failed else f"no end after {timeout_s:.0f} s"
                tails = "\n".join(f"--- rank {i}\n{log.read_text()[-1500:]}" for i, (_, log) in enumerate(running))
                raise RuntimeError(f"{what}\n{tails}")
            if over:
                return
            time.sleep(0.1)


def cores_of_host(number: int, hosts: int) -> str:
    """A host has cores of its own, as far as there are enough: what else runs here moves no rank to another's."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < hosts:
        return str(every[number % len(every)])
    return ",".join(map(str, every[number * len(every) // hosts : (number + 1) * len(every) // hosts]))


def _same_priority() -> str:
    """Sessions are scheduled as groups, each with a priority; a rank leads one of its own and takes ours."""
    try:
        words = Path("/proc/self/autogroup").read_text().split()
    except OSError:
        return ""
    # The file may be there and say nothing, where sessions are not scheduled as groups.
    return f"echo {words[-1]} > /proc/self/autogroup; " if words and words[-1] != "0" else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a rank and whatever it started: it leads a session of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@contextmanager
def shaped_network(hosts: Sequence[Host], rack_rate: str | None = None) -> Iterator[ShapedNetwork]:
    """Build the network, and remove every namespace of it at the end, whatever happens."""
    network = ShapedNetwork(f"mw{secrets.token_hex(2)}", hosts)
    made: list[str] = []
    try:
        _add_namespace(network.switch, made)
        _bridge(network.switch, "core")
        for rack in dict.fromkeys(host.rack for host in hosts if host.rack):
            _bridge(network.switch, f"br{rack}")
            _join_rack(network.switch, rack, rack_rate or "10gbit")
        for index, host in enumerate(hosts):
            _add_namespace(network.namespace(host), made)
            _join_host(network, host, index)
        yield network
    finally:
        for name in made:  # links and bridges go with their namespaces
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


def _add_namespace(name: str, made: list[str]) -> None:
    _sh(f"ip netns add {name}")
    made.append(name)
    _sh(f"ip -n {name} link set lo up")


def _bridge(namespace: str, name: str) -> None:
    _sh(f"ip -n {namespace} link add {name} type bridge")
    _sh(f"ip -n {namespace} link set {name} up")


def _shape(namespace: str, device: str, rate: str) -> None:
    """What passes at once after a pause is what the link carries in two milliseconds, or a few frames: with more, short
    messages would find a faster link than the one that was asked for."""
    burst = max(20_000, round(float(rate[:-4]) * _UNITS[rate[-4:]] / 8 * 2e-3))
    _sh(f"ip -n {namespace} link set {device} gso_max_size {_AT_ONCE}")
    _sh(f"ip netns exec {namespace} tc qdisc add dev {device} root tbf rate {rate} burst {burst}b latency {_QUEUE}")


def _join_rack(switch: str, rack: str, rate: str) -> None:
    up, down = f"u{rack}", f"d{rack}"
    _sh(f"ip -n {switch} link add {up} type veth peer name {down}")
    for device, bridge in ((up, "core"), (down, f"br{rack}")):
        _sh(f"ip -n {switch} link set {device} master {bridge}")
        _sh(f"ip -n {switch} link set {device} up")
        _shape(switch, device, rate)


def _join_host(network: ShapedNetwork, host: Host, index: int) -> None:
    inside, port = network.namespace(host), f"p{index}"
    _sh(f"ip -n {inside} link add eth0 type veth peer name {port} netns {network.switch}")
    _sh(f"ip -n {inside} addr add {network.address(index)}/24 dev eth0")
    _sh(f"ip -n {inside} link set eth0 up")
    _sh(f"ip -n {network.switch} link set {port} master {f'br{host.rack}' if host.rack else 'core'}")
    _sh(f"ip -n {network.switch} link set {port} up")
    _shape(inside, "eth0", host.rate)
    _shape(network.switch, port, host.rate)


if __name__ == "__main__":
    sys.exit(why_not())
