"""What a script does that should not leave its own job. It imports only what every zygote has imported."""

import ctypes
import os
import signal
import socket
import sys

from holdfast.node import frames
from holdfast.node.vault import messages
from holdfast.orders.backup import BackupOrder

PTRACE_ATTACH = 16
libc = ctypes.CDLL(None, use_errno=True)


def environment():
    """Return its own variables, which it may see."""
    return dict(os.environ)


def who():
    """Return its user."""
    return os.getuid()


def reach(paths):
    """Return the paths that can be opened for reading, for writing, or connected to."""
    return [path for path in paths if any(_opens(path, mode) for mode in (os.O_RDONLY, os.O_WRONLY)) or _joins(path)]


def _opens(path, mode):
    try:
        os.close(os.open(path, mode | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _joins(path):
    with socket.socket(socket.AF_UNIX) as link:
        try:
            # Longer paths than an address takes are reached by way of their directory.
            folder = os.open(os.path.dirname(path), os.O_PATH)
            try:
                link.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
            finally:
                os.close(folder)
        except OSError:
            return False
    return True


def processes(pids):
    """Return what of these processes can be read, signalled, traced or taken from."""
    done = []
    for pid in pids:
        for name in ("environ", "mem", "maps", "stack", "auxv", "io", "cwd", "root", "exe", "fd"):
            path = f"/proc/{pid}/{name}"
            try:
                _look(path)
                done.append(path)
            except OSError:
                continue
        done += [f"signal {number} to {pid}" for number in (0, signal.SIGSTOP, signal.SIGKILL) if _signals(pid, number)]
        if libc.ptrace(PTRACE_ATTACH, pid, 0, 0) == 0:
            done.append(f"ptrace {pid}")
        if (taken := _take_descriptor(pid)) is not None:
            done.append(f"descriptor {taken} of {pid}")
    return done


def _look(path):
    if path.rsplit("/", 1)[1] in ("cwd", "root", "exe"):
        os.readlink(path)
    elif path.endswith("/fd"):
        os.listdir(path)
    else:
        with open(path, "rb") as file:
            # Of a process that has just ended, anyone may open `maps`: there is nothing in it.
            if not file.read(1):
                raise OSError("nothing was read")


def _signals(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def _take_descriptor(pid):
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return None
    for number in range(20):
        if libc.syscall(438, process, number, 0) >= 0:
            return number
    return None


def memory(wanted):
    """Return which of these, given as pieces so that they are nowhere whole, are in its own memory.

    It was forked from a process that started other ranks before."""
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as mem:
        places = [line.split() for line in maps]
        for place in places:
            if "rw" not in place[1] or (len(place) > 5 and place[5].startswith(("[v", "/"))):
                continue
            begin, end = (int(part, 16) for part in place[0].split("-"))
            for at in range(begin, end, 1 << 22):
                try:
                    mem.seek(at)
                    data = mem.read(min(1 << 22, end - at))
                except (OSError, ValueError, OverflowError):
                    break
                found |= {first for first, second in wanted if _holds(data, first.encode(), second.encode())}
    return sorted(found)


def _holds(data, first, second):
    at = 0
    while (at := data.find(first, at)) >= 0:
        at += len(first)
        if data[at : at + len(second)] == second:
            return True
    return False


def descriptors():
    """Return what it has open."""
    return {
        number: os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if _is_open(number)
    }


def _is_open(number):
    return os.path.lexists(f"/proc/self/fd/{number}")


def rise():
    """Return the ways by which it became more than its user."""
    ways = {
        "setuid": lambda: os.setuid(0),
        "setgroups": lambda: os.setgroups([0]),
        "setresgid": lambda: os.setresgid(0, 0, 0),
        "chroot": lambda: os.chroot("/"),
        "nice": lambda: os.nice(-5),
        "raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "low port": lambda: socket.create_server(("127.0.0.1", 81)),
        "a device": lambda: os.mknod("/tmp/holdfast-device", 0o20666, os.makedev(1, 1)),
        "mount": lambda: _checked(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
        "hostname": lambda: socket.sethostname("taken"),
        "chown": lambda: os.chown(os.environ["HOLDFAST_LEDGER"], 0, 0),
    }
    return [name for name, way in ways.items() if _works(way)]


def _works(way):
    try:
        way()
    except OSError:
        return False
    return True


def _checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "refused")


def make(paths):
    """Return the paths where a file could be made, or a link."""
    return [path for path in paths if _works(lambda path=path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)))] + [
        path for path in paths if _works(lambda path=path: os.symlink("/etc/shadow", path))
    ]


def exchange(path, kind):
    """Put a pipe or a link in the place of a file of its own, and the file back: kind "file"."""
    if kind == "file":
        os.rename(path + ".aside", path)
        return
    os.rename(path, path + ".aside")
    os.mkfifo(path) if kind == "pipe" else os.symlink(kind, path)


def vault(*asked):
    """Return the answers of its node's vault."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(5)
    folder = os.open(os.environ["HOLDFAST_VAULT"], os.O_PATH)
    link.connect(f"/proc/self/fd/{folder}/vault.sock")
    answers = []
    try:
        for kind, fields in asked:
            frames.send(link, _request(kind, fields))
            answer, _ = frames.receive(link, messages.answers)
            answers.append([type(answer).__name__, repr(answer)])
    except (frames.WireError, OSError) as error:
        answers.append(["closed", str(error)])
    finally:
        link.close()
        os.close(folder)
    return answers


def _request(kind, fields):
    plain = dict(fields)
    if "name" in plain:
        plain["name"] = messages.ShardName(**plain["name"])
    if plain.get("pid") == "own":
        plain["pid"] = os.getpid()
    if "sealed" in plain:
        plain["sealed"] = messages.SealedStep(**plain["sealed"])
    if kind == "Assign":
        plain["order"] = BackupOrder(
            node=os.environ["HOLDFAST_NODE"],
            job="victim",
            submitted_ms=1,
            world_size=2,
            generation=99,
            node_rank=0,
            nproc_per_node=1,
        )
    return getattr(messages, kind)(**plain)


def talk(port, text):
    """Return what a port answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(text.encode())
        answer = b""
        try:
            while len(answer) < 10_000 and (part := link.recv(4096)):
                answer += part
        except OSError:
            pass
    return answer.decode(errors="replace")


def say(text):
    """Print."""
    sys.stdout.write(text)
    sys.stdout.flush()


def report(lines):
    """Write into the reports of its job what the library would not."""
    with open(os.environ["HOLDFAST_REPORTS"], "ab") as file:
        file.write("".join(line + "\n" for line in lines).encode())


def blurt(port, text):
    """Send a text to a port and leave; returns whether it took it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
            link.sendall(text.encode())
    except OSError:
        return False
    return True
