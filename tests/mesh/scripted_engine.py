"""An engine that does exactly what a request tells it to, byte by byte.

Usage: scripted_engine.py LOG MODEL [MODEL ...] [--api-key KEY]

With a key, what does not show it is answered with 401.

It listens on a free port, lists its models and answers a small completion, so that an agent takes it for ready. A
request whose JSON body has a `script` is answered by its steps instead:

    ["send", TEXT]      write TEXT (Latin-1, so that any byte can be written) in one segment
    ["sleep", SECONDS]
    ["await", NAME]     wait until there is a file LOG.NAME
    ["close"]           close the connection
    ["reset"]           reset it
    ["gone"]            wait until the caller has closed it
    ["say", TEXT]       print TEXT as a line
    ["connections"]     note which connections of this machine stand, each by the port of its far end
    ["exit", CODE]      end the whole process

A file LOG.print is printed as lines, and removed.

Three files beside LOG change that for requests without a script: while LOG.hang is there they are never answered, one that
holds the text in LOG.refuse is answered with 400, and the bytes in LOG.answer are the answer to all others.

Everything that happens is appended to LOG, one JSON object a line: what arrived (head and body as Latin-1), which
steps were done, and when the caller closed.
"""

import json
import os
import select
import socket
import struct
import sys
import threading
import time

ARGUMENTS = sys.argv[1:]
KEY = None
if "--api-key" in ARGUMENTS:
    at = ARGUMENTS.index("--api-key")
    KEY = ARGUMENTS[at + 1]
    del ARGUMENTS[at : at + 2]
LOG, MODELS = ARGUMENTS[0], ARGUMENTS[1:]
LOCK = threading.Lock()


def digest(body):
    """A sum over all bytes in their order, as the tests make it."""
    value = 0
    for byte in body:
        value = (value * 31 + byte) & 0xFFFFFFFF
    return value


def log(**event):
    with LOCK, open(LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), **event}) + "\n")


def read_request(sock, held):
    """One request: (head, body, what came after it), or None at the end of the connection."""
    while b"\r\n\r\n" not in held:
        data = sock.recv(65536)
        if not data:
            return None
        held += data
    head, _, rest = held.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    fields = dict(line.split(b":", 1) for line in lines[1:])
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        body = b""
        while True:
            while b"\r\n" not in rest:
                rest += sock.recv(65536)
            size, _, rest = rest.partition(b"\r\n")
            wanted = int(size, 16)
            while len(rest) < wanted + 2:
                rest += sock.recv(1 << 20)
            body, rest = body + rest[:wanted], rest[wanted + 2 :]
            if wanted == 0:
                return head, body, rest
    wanted = int(fields.get(b"content-length", b"0"))
    parts, length = [rest], len(rest)
    while length < wanted:
        data = sock.recv(1 << 20)
        if not data:
            return None
        parts.append(data)
        length += len(data)
    whole = b"".join(parts)
    return head, whole[:wanted], whole[wanted:]


def answer(sock, status, value):
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)


def standing():
    """The ports of the far ends of all connections that neither side has begun to close."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file][1:]
    return [int(row[2].split(":")[1], 16) for row in rows if row[3] == "01"]


def wait_gone(sock):
    while True:
        select.select([sock], [], [])
        try:
            if not sock.recv(65536):
                return
        except OSError:
            return


def play(sock, steps):
    """Does the steps. Returns whether the connection may be used again."""
    for step in steps:
        try:
            if step[0] == "send":
                sock.sendall(step[1].encode("latin-1"))
            elif step[0] == "sleep":
                time.sleep(step[1])
            elif step[0] == "await":
                while not os.path.exists(f"{LOG}.{step[1]}"):
                    time.sleep(0.01)
            elif step[0] == "say":
                print(step[1], flush=True)
            elif step[0] == "close":
                return False
            elif step[0] == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            elif step[0] == "gone":
                wait_gone(sock)
                log(event="gone")
                return False
            elif step[0] == "connections":
                log(event="connections", standing=standing())
            elif step[0] == "exit":
                os._exit(step[1])
        except OSError as error:
            log(event="broken", error=str(error))
            return False
    return True


def respond(sock, head, body):
    path = head.split(b" ")[1]
    if KEY and f"\r\nauthorization: bearer {KEY}\r\n" not in (head.decode("latin-1").lower() + "\r\n"):
        log(event="request", head=head.decode("latin-1"))
        answer(sock, "401 Unauthorized", {"error": {"message": "another key", "code": 401}})
        return True
    if path == b"/v1/models":
        answer(sock, "200 OK", {"object": "list", "data": [{"id": model, "object": "model"} for model in MODELS]})
        return True
    if path == b"/version":
        answer(sock, "200 OK", {"version": "scripted"})
        return True
    try:
        asked = json.loads(body)
    except ValueError:
        asked = {}
    if isinstance(asked, dict) and "script" in asked:
        log(event="request", head=head.decode("latin-1"), body=body.decode("latin-1") if len(body) < 1 << 20 else "", length=len(body), caller=sock.getpeername()[1])
        return play(sock, asked["script"])
    if asked.get("max_tokens") != 1:
        is_form = b"multipart/" in head.lower()
        log(event="request", head=head.decode("latin-1"), body=body.decode("latin-1") if len(body) < 1 << 20 else "", length=len(body), digest=digest(body) if is_form else None)
    if os.path.exists(LOG + ".hang"):
        wait_gone(sock)
        log(event="gone")
        return False
    refused = open(LOG + ".refuse", encoding="utf-8").read() if os.path.exists(LOG + ".refuse") else None
    if refused and refused.encode() in body:
        answer(sock, "400 Bad Request", {"error": {"message": f"unknown field {refused}", "code": 400}})
        return True
    if os.path.exists(LOG + ".answer"):
        with open(LOG + ".answer", "rb") as file:
            sock.sendall(file.read())
        return False
    choice = {"index": 0, "text": "ok", "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    answer(sock, "200 OK", {"id": "x", "object": "text_completion", "choices": [choice], "model": asked.get("model")})
    return True


def serve(sock):
    held = b""
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while request := read_request(sock, held):
                head, body, held = request
                if not respond(sock, head, body):
                    return
        except OSError:
            pass


def print_what_comes():
    while True:
        try:
            with open(LOG + ".print", encoding="utf-8") as file:
                lines = file.read()
            os.remove(LOG + ".print")
            print(lines, flush=True)
        except FileNotFoundError:
            time.sleep(0.05)


def main():
    threading.Thread(target=print_what_comes, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(f"scripted engine on port {listener.getsockname()[1]}", flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


main()
