"""An engine that prints far more than anybody reads, on both pipes at once.

usage: noise.py MEGABYTES
"""
import os
import sys
import threading

megabytes = int(sys.argv[1])
chunk = (b"x" * 199 + b"\n") * 500


def everything(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def pour(fd):
    everything(fd, b"y" * 5_000_000)
    everything(fd, b"\n" + b"\xff\xfe\x80" * 100_000 + b"\n")
    for _ in range(megabytes * 10):
        everything(fd, chunk)


pours = [threading.Thread(target=pour, args=(fd,)) for fd in (1, 2)]
for thread in pours:
    thread.start()
for thread in pours:
    thread.join()
everything(2, b"all written\n")
