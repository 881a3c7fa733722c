"""Several hosts on one machine: Linux network namespaces, joined by bridges, and the faults between them.

A host has two interfaces, each on a bridge of its own, and its own addresses, ports, host name, name
resolution (`/etc/hosts`) and processes. All hosts share the file system of the machine. Nothing is created
in the namespace of the machine itself, and everything is gone when the test process is: each namespace
lives as long as its first process, which reads a pipe from this process.

What a fault does to packets is the kernel's own filter at the receiving host, so every fault has a
direction.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.support.needs import as_root, lacking

ROOT = Path(__file__).parent.parent.parent
SUBNETS, SUBNET6 = ("10.78.0", "10.79.0"), "fd00:78::"
"""Of the two bridges for IPv4, and of the first one for IPv6."""
BRIDGES = ("lan", "back")
THIS_HOST = "127.0.1.1"
"""What each host's own name means on it besides its address, as on Debian, under the name `HOST.local`."""
COMMAND_S_MAX = 60.0
FIRST_PROCESS = ("sh", "-c", "echo ready; exec cat")
CLONE_NEWNET = 0x40000000
NAMESPACES = ("--net", "--mount", "--uts", "--pid")


def _enter_network(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Namespace:
    """A set of namespaces with a first process. Ending that process ends all processes in it."""

    def __init__(self) -> None:
        prefix = as_root()
        if prefix is None:
            lacking("network namespaces need root, or a sudo that asks for no password")
        self._prefix = prefix
        self._holder = subprocess.Popen(
            # The namespaces end with `unshare` (--kill-child), and `cat` with its pipe, which is ours.
            (*prefix, "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", *FIRST_PROCESS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            _, reason = self._holder.communicate()
            lacking(f"network namespaces cannot be created here: {reason.strip()}")
        self.pid = self._first_process()

    def _first_process(self) -> int:
        """Return the process id, outside of the namespaces, of their first process."""
        pid = self._holder.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs `arguments` in the namespaces."""
        enter = ["nsenter", "--target", str(self.pid), *NAMESPACES, "--"]
        return [*self._prefix, *enter, "env", f"--chdir={ROOT}", *arguments]

    def ip(self, *arguments: str) -> None:
        """Run `ip` in the network namespace alone, so that process ids are those outside of it."""
        enter = ["nsenter", "--target", str(self.pid), "--net", "--", "ip"]
        subprocess.run([*self._prefix, *enter, *arguments], check=True, timeout=COMMAND_S_MAX)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let this thread open its sockets and start its processes in the network of the namespaces. Only for
        root. The processes are not in the other namespaces: their ids are those outside.
        """
        here, there = Path("/proc/thread-self/ns/net"), Path(f"/proc/{self.pid}/ns/net")
        with here.open() as before, there.open() as entered:
            _enter_network(entered.fileno())
            try:
                yield
            finally:
                _enter_network(before.fileno())

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises RuntimeError with its output if it fails."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(
                f"{' '.join(arguments)}: exit code {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done

    @property
    def ended(self) -> bool:
        return self._holder.poll() is not None

    def end(self) -> None:
        """Kill every process in the namespaces: the loss of a host, or its clean-up."""
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()
        if self._holder.poll() is None:
            self._holder.kill()
        self._holder.wait()


class Host(Namespace):
    """One host of a `Network`. Other hosts reach `address` and `address6`, and `back_address` on the second
    interface.
    """

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name = name
        self.ports = tuple(f"p{interface}-{name}" for interface in range(len(BRIDGES)))
        """The bridges' ends of this host's cables."""
        self.address, self.back_address = (f"{subnet}.{number}" for subnet in SUBNETS)
        self.cards = tuple(f"02:00:00:00:{interface:02x}:{number:02x}" for interface in range(len(BRIDGES)))
        """The hardware addresses of the interfaces, by which faults choose packets of both IP versions."""
        self.address6 = f"{SUBNET6}{number:x}"
        self.run("hostname", name)
        self.ip("link", "set", "lo", "up")

    def popen(
        self,
        *arguments: str,
        stdin: int | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[str]":
        """Start a process on the host. Its id on the host differs: end it with the host, or by `signal`."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def python(self, *arguments: str) -> list[str]:
        """Return the command that runs this Python on the host."""
        return self.command(sys.executable, *arguments)

    def signal(self, number: str, pattern: str) -> None:
        """Send a signal to every process of the host whose command line contains a pattern."""
        self.run("pkill", f"-{number}", "--full", pattern)

    def signal_all(self, number: str) -> None:
        """Send a signal to every process of the host, for example STOP: a host that hangs."""
        self.run("sh", "-c", f"kill -{number} -1", check=False)

    def filter(self, *rule: str) -> None:
        """Append a rule to the packet filters of IPv4 and IPv6."""
        for program in ("iptables", "ip6tables"):
            self.run(program, "--wait", "--append", "INPUT", *rule)

    def filter_from(self, source: "Host", *rule: str) -> None:
        """Append a rule for the packets that another host sends, on either interface."""
        for card in source.cards:
            self.filter("--match", "mac", "--mac-source", card, *rule)

    def accept_all(self) -> None:
        """Remove every rule of the packet filters."""
        for program in ("iptables", "ip6tables"):
            self.run(program, "--wait", "--flush", "INPUT")


class Network:
    """Hosts on two bridges. Every fault lasts until `heal` or `plug`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.hosts: dict[str, Host] = {}
        self._relays: dict[str, subprocess.Popen[str]] = {}
        self._switch = Namespace()
        stack.callback(self._switch.end)
        stack.callback(self._end_relays)
        for bridge in BRIDGES:
            self._switch.ip("link", "add", bridge, "type", "bridge")
            self._switch.ip("link", "set", bridge, "up")

    def add(self, name: str) -> Host:
        """Start a host and connect it."""
        host = Host(name, len(self.hosts) + 11)
        self._stack.callback(host.end)
        switch = self._switch
        addresses = (host.address, host.back_address)
        for number, (bridge, address) in enumerate(zip(BRIDGES, addresses, strict=True)):
            interface, port = f"eth{number}", host.ports[number]
            far_end = ("peer", "name", interface, "address", host.cards[number], "netns", str(host.pid))
            switch.ip("link", "add", port, "type", "veth", *far_end)
            switch.ip("link", "set", port, "master", bridge, "up")
            host.ip("address", "add", f"{address}/24", "dev", interface)
            host.ip("link", "set", interface, "up")
        host.ip("address", "add", f"{host.address6}/64", "dev", "eth0", "nodad")
        self.hosts[name] = host
        return host

    def name_hosts(self, folder: Path) -> None:
        """Let every host resolve all host names, and nothing else: there is no name server here."""
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts.values())
        for host in self.hosts.values():
            files = {
                "/etc/hosts": f"127.0.0.1 localhost\n{THIS_HOST} {host.name}.local\n{names}",
                "/etc/nsswitch.conf": "hosts: files\n",
            }
            for target, content in files.items():
                path = folder / f"{host.name}-{Path(target).name}"
                path.write_text(content)
                host.run("mount", "--bind", str(path), target)

    # --- faults ---------------------------------------------------------------------------------------

    def unplug(self, host: Host) -> None:
        """Pull the cables of a host: nothing arrives there or leaves, and no connection is reset."""
        for port in self._cables(host):
            self._switch.ip("link", "set", port, "down")

    def plug(self, host: Host) -> None:
        """Put the cables of a host back."""
        for port in self._cables(host):
            self._switch.ip("link", "set", port, "up")

    def _cables(self, host: Host) -> list[str]:
        slow = [near for near in self._relays if near.endswith(f"-{host.name}")]
        return [*host.ports, *slow]

    def drop(self, sources: Sequence[Host], target: Host) -> None:
        """Lose every packet from `sources` to `target`: a partition in one direction."""
        for source in sources:
            target.filter_from(source, "--jump", "DROP")

    def part(self, one: Host, other: Host) -> None:
        """Lose every packet between two hosts, in both directions."""
        self.drop([one], other)
        self.drop([other], one)

    def refuse(self, one: Host, other: Host) -> None:
        """Reset every connection between two hosts, in both directions."""
        for source, target in ((one, other), (other, one)):
            reset = ("--protocol", "tcp", "--jump", "REJECT", "--reject-with", "tcp-reset")
            target.filter_from(source, *reset)

    def vanish(self, host: Host) -> int:
        """Forget the connections of a host to others, as a firewall does that restarts; new ones work.

        Return how many there were. No end of them receives anything again, and none is reset.
        """
        found = host.run("ss", "--no-header", "--tcp", "--numeric", "state", "established").stdout
        count = 0
        for line in found.splitlines():
            (_, my_port), (theirs, their_port) = (end.rsplit(":", 1) for end in line.split()[2:4])
            peer = self._by_address(theirs)
            if peer is None:
                continue
            count += 1
            for source, source_port, target, target_port in (
                (peer, their_port, host, my_port),
                (host, my_port, peer, their_port),
            ):
                ports = ("--protocol", "tcp", "--source-port", source_port, "--destination-port", target_port)
                target.filter_from(source, *ports, "--jump", "DROP")
        return count

    def _by_address(self, text: str) -> Host | None:
        """Return the host with an address as `ss` prints it."""
        address = text.strip("[]").removeprefix("::ffff:")
        known = ((one, (one.address, one.back_address, one.address6)) for one in self.hosts.values())
        return next((host for host, addresses in known if address in addresses), None)

    def slow_down(self, host: Host, *, delay_s: float, loss: float) -> None:
        """Delay every packet between a host and the others, in each direction, and lose a fraction.

        The addresses of the host move to slow interfaces (`relay.py`), so its connections survive. A host
        that is slow already gets the new values.
        """
        for number, bridge in enumerate(BRIDGES):
            near, far = f"q{number}-{host.name}", f"slow{number}"
            if near in self._relays:
                stdin = self._relays[near].stdin
                assert stdin is not None
                stdin.write(f"{delay_s} {loss}\n")
                stdin.flush()
                continue
            relay = subprocess.Popen(
                self._switch.command(
                    sys.executable, "-m", "tests.hosts.relay", near, far, str(delay_s), str(loss)
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._relays[near] = relay
            assert relay.stdout is not None
            assert relay.stdout.readline() == "ready\n"
            switch, interface = self._switch, f"eth{number}"
            switch.ip("link", "set", near, "master", bridge, "up")
            switch.ip("link", "set", far, "netns", str(host.pid))
            host.ip("link", "set", interface, "down")
            host.ip("link", "set", far, "address", host.cards[number])
            host.ip("address", "add", f"{(host.address, host.back_address)[number]}/24", "dev", far)
            host.ip("link", "set", far, "up")
            if number == 0:
                host.ip("address", "replace", f"{host.address6}/64", "dev", far, "nodad")

    def _end_relays(self) -> None:
        for relay in self._relays.values():
            relay.communicate(timeout=COMMAND_S_MAX)  # closes its standard input, so it ends
        if self._relays:
            for host in self.hosts.values():
                if not host.ended:
                    for number in range(len(BRIDGES)):
                        host.ip("link", "set", f"eth{number}", "up")
                    host.ip("address", "replace", f"{host.address6}/64", "dev", "eth0", "nodad")
        self._relays.clear()

    def heal(self) -> None:
        """End every fault but the loss of hosts."""
        self._end_relays()
        for host in self.hosts.values():
            if not host.ended:
                host.accept_all()
                self.plug(host)


@contextmanager
def open_network() -> Iterator[Network]:
    """A network without hosts. Skips where namespaces are not allowed; fails there where CI is set."""
    with ExitStack() as stack:
        yield Network(stack)
