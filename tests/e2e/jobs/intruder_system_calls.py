"""What a script asks of the kernel to get beyond its job. It imports only what every zygote has imported."""

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, CLONE_NEWNS, CLONE_NEWUSER = -100, 0x20000, 0x10000000


def _done(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _worked(ways):
    """Return the names of the ways that worked."""
    names = []
    for name, way in ways.items():
        try:
            way()
            names.append(name)
        except (OSError, ValueError):
            continue
    return names


def shared_memory():
    """Return the shared memory of others that it could open or attach."""
    got = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if _opens_memory(f"/dev/shm/{name}")]
    with open("/proc/sysvipc/shm") as table:
        segments = [line.split() for line in table.readlines()[1:]]
    for segment in segments:
        if ctypes.c_long(libc.shmat(int(segment[1]), None, 0o10000)).value not in (-1, 0xFFFFFFFF):
            got.append(f"segment {segment[1]}")
    return got


def _opens_memory(path):
    try:
        if os.path.isdir(path):
            return bool(os.listdir(path))
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return os.stat(path).st_uid != os.getuid()


def watch(paths):
    """Return the paths whose changes the kernel tells it about."""
    watching = _done(libc.inotify_init1(os.O_NONBLOCK))
    try:
        return [path for path in paths if libc.inotify_add_watch(watching, os.fsencode(path), 0xFFF) >= 0]
    finally:
        os.close(watching)


def link_to(paths, folder):
    """Return the files to which it could make a second name: what removes or owns that name would meet the file."""
    return [path for path in paths if _worked({path: lambda path=path: os.link(path, f"{folder}/linked")})]


def connect_abstract(names):
    """Return the abstract sockets that took a connection."""
    joined = []
    for name in names:
        with socket.socket(socket.AF_UNIX) as link:
            if _worked({name: lambda link=link, name=name: link.connect("\0" + name[1:])}):
                joined.append(name)
    return joined


def bind(ports):
    """Return the ports of which it could take a share, as servers do that divide connections among them."""
    taken = []
    for port in ports:
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as server:
                for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                    server.setsockopt(socket.SOL_SOCKET, option, 1)
                if _worked({port: lambda server=server, at=(address, port): (server.bind(at), server.listen())}):
                    taken.append(port)
    return taken


def root_only():
    """Return the calls for root that worked."""
    assert os.getuid() != 0
    attribute = (ctypes.c_char * 128)()
    calls = {
        "reboot": lambda: libc.reboot(0),
        "kexec": lambda: libc.syscall(246, 0, 0, None, 0),
        "init_module": lambda: libc.syscall(175, b"", 0, b""),
        "swapoff": lambda: libc.swapoff(b"/none"),
        "acct": lambda: libc.acct(b"/dev/null"),
        "settimeofday": lambda: libc.settimeofday(b"\0" * 16, None),
        "clock_settime": lambda: libc.clock_settime(0, b"\0" * 16),
        "pivot_root": lambda: libc.syscall(155, b"/", b"/"),
        "quotactl": lambda: libc.syscall(179, 0x80000200, b"/dev/vda", 0, None),
        "bpf": lambda: libc.syscall(321, 5, attribute, 128),
        "iopl": lambda: libc.iopl(3),
        "syslog": lambda: libc.klogctl(5, None, 0),
        "unshare namespaces": lambda: libc.unshare(CLONE_NEWNS),
        "io priority": lambda: libc.syscall(251, 1, 0, 1 << 13),
        "real-time": lambda: libc.sched_setscheduler(0, 1, struct.pack("i", 1)),
        "sniff": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300).close() or 0,
        "nfnetlink": lambda: _netfilter(),
        "open by handle": lambda: libc.open_by_handle_at(AT_FDCWD, b"\x08\0\0\0\x01\0\0\0" + b"\0" * 8, 0),
    }
    return _worked({name: lambda call=call: _done(call()) for name, call in calls.items()})


def _netfilter():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as link:
        link.bind((0, 0))
        # A new table of rules for packets.
        link.send(struct.pack("=IHHIIBBH", 20, (10 << 8) | 0, 0x605, 1, 0, 2, 0, 0))
        (answer,) = struct.unpack_from("=i", link.recv(4096), 16)
        if answer < 0:
            raise OSError(-answer, "refused")
    return 0


def kernel_settings(pids):
    """Return the settings of the kernel, and of other processes, that it could open for writing."""
    paths = [
        *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches"),
        *("/proc/sysrq-trigger", "/dev/kmsg", "/dev/mem", "/dev/vda", "/sys/power/state", "/proc/sys/fs/file-max"),
        *(f"/proc/{pid}/{name}" for pid in pids for name in ("comm", "oom_score_adj", "clear_refs", "uid_map")),
    ]
    return [path for path in paths if _worked({path: lambda path=path: os.close(os.open(path, os.O_WRONLY))})]


def handle(pids):
    """Return what it could set about other processes."""
    changed = []
    for pid in pids:
        ways = {
            "processors": lambda pid=pid: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
            "priority": lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
            "scheduling": lambda pid=pid: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)),
            "limits": lambda pid=pid: _done(libc.prlimit(pid, 7, struct.pack("QQ", 64, 64), None)),
            "memory": lambda pid=pid: _done(libc.syscall(279, pid, 0, None, None, None, 0)),
            "write": lambda pid=pid: _done(libc.process_vm_writev(pid, _vector(b"x"), 1, _vector(b"x"), 1, 0)),
            "group": lambda pid=pid: os.killpg(pid, signal.SIGSTOP),
            "robust list": lambda pid=pid: _done(
                libc.syscall(274, pid, ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_size_t()))
            ),
            "counters": lambda pid=pid: os.close(_done(libc.syscall(298, _event(), pid, -1, -1, 0))),
        }
        changed += [f"{name} of {pid}" for name in _worked(ways)]
    return changed


_kept = []


def _vector(data):
    buffer = ctypes.create_string_buffer(data)
    _kept.append(buffer)
    return struct.pack("PN", ctypes.addressof(buffer), 1)


def _event():
    return struct.pack("IIQQQQQ", 1, 128, 0, 0, 0, 0, 0) + b"\0" * 80


def in_own_namespace(paths):
    """Return the paths that it reaches as root of a user namespace of its own; None if it gets none."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        found = b"none"
        try:
            uid = os.getuid()
            if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
                with open("/proc/self/uid_map", "w") as file:
                    file.write(f"0 {uid} 1")
                libc.mount(b"/", b"/", None, 0x4000 | 0x1000, None)
                libc.mount(b"/proc/1/root", b"/mnt", None, 0x1000, None)
                found = "\n".join(path for path in paths if _readable(path)).encode()
        except OSError:
            pass
        os.write(writing, found[:60_000] or b"nothing")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        found = file.read()
    os.waitpid(child, 0)
    return None if found == b"none" else [] if found == b"nothing" else found.decode().split("\n")


def _readable(path):
    return bool(_worked({path: lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))}))


def _vault():
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(5)
    folder = os.open(os.environ["HOLDFAST_VAULT"], os.O_PATH)
    for _ in range(200):
        try:
            link.connect(f"/proc/self/fd/{folder}/vault.sock")
            break
        except BlockingIOError:
            time.sleep(0.05)  # others wait there
    os.close(folder)
    return link


def claim_to_be_root():
    """Return whether it could send the vault another user's name as its own."""
    with _vault() as link:
        credentials = struct.pack("iII", 1, 0, 0)
        return _worked({"root": lambda: link.sendmsg([b"\0\0\0\0"], [(socket.SOL_SOCKET, 2, credentials)])})


def flood_vault(connections):
    """Hold connections to its vault, each in the middle of a long message."""
    links = []
    for _ in range(connections):
        link = _vault()
        link.send(struct.pack("<I", 256 << 20) + b"x" * 100)
        links.append(link)
    time.sleep(1)
    for link in links:
        link.close()
    return len(links)


def nonsense_to_vault(count):
    """Send the vault bytes that are no messages, each on a connection of its own."""
    for number in range(count):
        with _vault() as link:
            body = os.urandom(number) if number % 3 else b"\x91" * (20 * number)
            _worked({"send": lambda link=link, body=body: link.sendall(struct.pack("<I", len(body)) + body)})
    return count


def give_descriptors(count):
    """Send the vault descriptors that no message takes."""
    with open("/dev/null") as null:
        for _ in range(count):
            with _vault() as link:
                numbers = struct.pack("250i", *[null.fileno()] * 250)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
                _worked(
                    {"send": lambda link=link, rights=rights: link.sendmsg([struct.pack("<I", 3) + b"abc"], rights)}
                )
    return count


def exchange_for(paths, kind):
    """Put something else in the place of files of its own for two seconds."""
    for path in paths:
        os.rename(path, path + ".aside")
    try:
        for path in paths:
            put(path, kind)
        time.sleep(2)
    finally:
        for path in paths:
            os.rmdir(path) if kind == "a directory" else os.unlink(path)
            os.rename(path + ".aside", path)


def put(path, kind):
    if kind == "a directory":
        os.mkdir(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as link:
            folder = os.open(os.path.dirname(path), os.O_PATH)
            link.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
            os.close(folder)
    elif kind == "a link to itself":
        os.symlink(path, path)
    else:
        with open(path, "wb") as file:
            file.truncate({"an empty file": 0, "a file of a terabyte": 1 << 40}[kind])


def swell_reports(nbytes):
    """Make its job's reports long and empty for two seconds."""
    path = os.environ["HOLDFAST_REPORTS"]
    size = os.stat(path).st_size
    os.truncate(path, nbytes)
    time.sleep(2)
    os.truncate(path, size)


def leave_behind():
    """Start a process that has left session, parents and limits of its rank; return its pid."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        if os.fork():
            os._exit(0)
        # The limit by which agents find what ranks left (docs/adr/0030): a process may lower it.
        lowered = resource.getrlimit(10)[0] // 2
        _worked({"limit": lambda: resource.setrlimit(10, (lowered, lowered))})
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.write(writing, str(os.getpid()).encode())
        os.closerange(0, 1000)
        while True:
            time.sleep(60)
    os.waitpid(child, 0)
    pid = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    return pid


def lease(path, seconds):
    """Take a lease on a file, write to it, and answer nobody who opens it. Return False where there are no leases."""
    libc.signal(signal.SIGIO, ctypes.c_void_p(1))
    file = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    os.write(file, b'{"kind": "none"}\n')
    threading.Timer(seconds, os.close, (file,)).start()
    return True
