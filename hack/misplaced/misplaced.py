#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows MPTCP data that arrives in the wrong place: hack/misplaced/misplaced.py [RUNS].

As root, with iproute2, on a kernel with userfaultfd; nothing of Braid runs.
docs/kernel-notes.md says what happens. The receiver holds its socket's lock while a subflow
joins and brings its first data: here by a page fault that another thread answers late, in
the field by being preempted while it reads.
"""
import ctypes
import fcntl
import mmap
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

MPTCP, PAGE = 262, mmap.PAGESIZE
SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
CLIENT, SERVER = f"misplaced-c-{os.getpid()}", f"misplaced-s-{os.getpid()}"
libc = ctypes.CDLL(None, use_errno=True)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def enter(namespace):
    if libc.setns(namespace.fileno(), 0):
        raise OSError(ctypes.get_errno(), "setns: run this as root")


def socket_in(namespace):
    """An MPTCP socket of a namespace."""
    with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{namespace}") as other:
        enter(other)
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
        finally:
            enter(own)


def set_up():
    for namespace in (CLIENT, SERVER):
        ip("netns", "add", namespace)
        subprocess.run(["ip", "netns", "exec", namespace, "sysctl", "-qw", "net.mptcp.enabled=1"], check=True)
        ip("-n", namespace, "mptcp", "limits", "set", "subflows", "2")
    for link in "12":
        ip("link", "add", f"v{link}", "netns", CLIENT, "type", "veth", "peer", "name", f"v{link}", "netns", SERVER)
        for end, namespace in ((1, CLIENT), (2, SERVER)):
            ip("-n", namespace, "addr", "add", f"10.0.{link}.{end}/24", "dev", f"v{link}")
            ip("-n", namespace, "link", "set", f"v{link}", "up")
    ip("-n", CLIENT, "route", "add", "10.0.1.0/24", "dev", "v2", "metric", "1000")


def slow_page():
    """A page whose first fault waits until the returned function is called."""
    fd = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd: the kernel lacks it (CONFIG_USERFAULTFD), or this is not root")
    fcntl.ioctl(fd, UFFDIO_API, struct.pack("=QQQ", 0xAA, 0, 0))
    page = mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    fcntl.ioctl(fd, UFFDIO_REGISTER, struct.pack("=QQQQ", address, PAGE, 1, 0))
    return page, lambda: fcntl.ioctl(fd, UFFDIO_ZEROPAGE, struct.pack("=QQQq", address, PAGE, 0, 0))


def receive(accepted, total, hold):
    """Reads all, the first bytes into the slow page."""
    page, answer = slow_page()
    threading.Timer(hold, answer).start()
    count = accepted.recv_into(page, 100)
    received = bytearray(page[:count])
    while len(received) < total and (more := accepted.recv(1 << 16)):
        received += more
    return received


def run(port):
    data = random.Random(port).randbytes(400_000)
    listener, client = socket_in(SERVER), socket_in(CLIENT)
    listener.bind(("10.0.1.2", port))
    listener.listen()
    client.connect(("10.0.1.2", port))
    accepted, _ = listener.accept()
    client.sendall(data[:100])
    result = []
    reader = threading.Thread(target=lambda: result.append(receive(accepted, len(data), 0.6)))
    reader.start()
    time.sleep(0.2)  # it holds the lock now
    ip("-n", CLIENT, "mptcp", "endpoint", "add", "10.0.2.1", "dev", "v2", "subflow")
    time.sleep(0.2)  # the subflow joins
    ip("-n", CLIENT, "neigh", "replace", "10.0.1.2", "lladdr", "02:00:00:00:00:01", "dev", "v1")  # the first subflow loses all
    client.sendall(data[100:2000])  # and so it keeps these
    time.sleep(0.05)
    threading.Thread(target=client.sendall, args=(data[2000:],)).start()
    time.sleep(0.7)
    ip("-n", CLIENT, "neigh", "del", "10.0.1.2", "dev", "v1")
    reader.join()
    ip("-n", CLIENT, "mptcp", "endpoint", "flush")
    for opened in (client, accepted, listener):
        opened.close()
    received = bytes(result[0])
    for at in range(len(data)):
        if data[at] != received[at]:
            where = data.find(received[at:at + 32])
            print(f"run {port}: from {at} on the bytes are those at {where}")
            return True
    print(f"run {port}: whole")
    return False


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    try:
        set_up()
        wrong = sum(run(5001 + i) for i in range(runs))
    finally:
        for namespace in (CLIENT, SERVER):
            subprocess.run(["ip", "netns", "del", namespace])
    print(f"wrong bytes in {wrong} of {runs} runs")


main()
