"""Writes so many megabytes a second on each of its outputs, and notes how long a write took at most and whether it kept pace.

Usage: noise.py FILE MEGABYTES_PER_SECOND SECONDS
"""

import json
import os
import sys
import threading
import time

FILE, RATE, SECONDS = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
TICK = 0.01
# Lines as engines print them.
LINE = b"INFO 11-29 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 3 reqs\n"
CHUNK = LINE * max(1, int(RATE * 1e6 * TICK / len(LINE)))
FOUND = {}


def write(to):
    begun, written, longest = time.monotonic(), 0, 0.0
    while time.monotonic() - begun < SECONDS:
        before = time.monotonic()
        rest = CHUNK
        while rest:
            rest = rest[os.write(to, rest) :]
        longest = max(longest, time.monotonic() - before)
        written += len(CHUNK)
        due = begun + written / (RATE * 1e6)
        time.sleep(max(0.0, due - time.monotonic()))
    FOUND[to] = {"longest_s": longest, "rate": written / 1e6 / (time.monotonic() - begun)}


writers = [threading.Thread(target=write, args=(to,)) for to in (1, 2)]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
with open(FILE + ".new", "w", encoding="utf-8") as file:
    json.dump({"longest_s": max(f["longest_s"] for f in FOUND.values()), "rate": min(f["rate"] for f in FOUND.values())}, file)
os.rename(FILE + ".new", FILE)
time.sleep(1000)
