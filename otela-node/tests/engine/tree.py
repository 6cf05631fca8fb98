"""An engine whose processes do not want to be found: they rename themselves, ignore every polite signal, leave
the session, and hold a marker file (a fifo, so that its reader sees when the last of them is gone).

usage: tree.py FIFO stubborn|polite|alone [EXIT_CODE_ON_SIGUSR1]
"""
import os
import signal
import sys

fifo, manner = sys.argv[1:3]
exit_code = int(sys.argv[3]) if len(sys.argv) > 3 else 0
POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def live(role):
    with open("/proc/self/comm", "w") as comm:
        comm.write(f"x) S 1 1 {role[:4]}")
    if manner == "alone" or manner == "stubborn" and role != "main":
        for number in POLITE:
            signal.signal(number, signal.SIG_IGN)
    marker = os.open(fifo, os.O_WRONLY)
    os.write(marker, f"{role} {os.getpid()}\n".encode())


def forever():
    while True:
        signal.pause()


def fork(role, then=forever, session=False):
    if os.fork() == 0:
        if session:
            os.setsid()
        live(role)
        then()


def double_fork():
    if (child := os.fork()) == 0:
        os.setsid()
        fork("daemon")
        os._exit(0)
    os.waitpid(child, 0)


def middle():
    fork("worker")
    forever()


signal.signal(signal.SIGUSR1, lambda *_: os._exit(exit_code))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if manner != "alone":
    fork("middle", middle)
    fork("session", session=True)
    double_fork()
live("main")
forever()
