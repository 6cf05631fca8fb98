"""Times a fixed piece of work and a fixed number of wake-ups, so that the times of two machines can be compared.

Usage: control.py

The least of three runs is printed: seconds of one core for the work, and microseconds from one process to another and back.
"""

import os
import time

RUNS = 3
STEPS = 3_000_000
ROUND_TRIPS = 5_000


def work():
    begun = time.perf_counter()
    value = 1
    for _ in range(STEPS):
        value = value * 31 & 0xFFFFFFFF
    return time.perf_counter() - begun


def wake_ups():
    there, here = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for _ in range(ROUND_TRIPS):
            os.write(here[1], os.read(there[0], 1))
        os._exit(0)
    begun = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        os.write(there[1], b"x")
        os.read(here[0], 1)
    took = time.perf_counter() - begun
    os.waitpid(child, 0)
    return took / ROUND_TRIPS


worked = min(work() for _ in range(RUNS))
woke = min(wake_ups() for _ in range(RUNS))
print(f"control: {worked:.2f} s for a fixed piece of work, {woke * 1e6:.0f} us for a wake-up there and back")
