"""An engine's HTTP side, one step further into its loading at every SIGUSR1:
0 bound but not listening, 1 listening without a model, 2 listing a model but failing to generate, 3 serving.

usage: server.py [--host H] [--port P] [--step N] [--task completion|chat|embedding|other|none] [--api-key K]
                 [--reuse-port] [--strange-port]
"""
import argparse
import http.server
import json
import signal
import socket
import sys
import threading

parser = argparse.ArgumentParser()
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--step", type=int, default=3)
parser.add_argument("--task", default="completion")
parser.add_argument("--api-key")
parser.add_argument("--reuse-port", action="store_true")
parser.add_argument("--strange-port", action="store_true", help="also listen where no HTTP is spoken")
options = parser.parse_args()
sys.stdout.reconfigure(line_buffering=False, write_through=False)
PATHS = {"completion": "/v1/completions", "chat": "/v1/chat/completions", "embedding": "/v1/embeddings"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refused(self):
        if options.api_key and self.headers.get("Authorization") != f"Bearer {options.api_key}":
            self.answer(401, {"error": "Unauthorized"})
            return True
        return False

    def do_GET(self):
        if self.path == "/version":
            self.answer(200, {"version": "0.9.test"})
        elif self.path != "/v1/models":
            self.answer(404, {"detail": "Not Found"})
        elif not self.refused():
            models = [{"id": "org/model", "max_model_len": 4096, "owned_by": "test"}]
            self.answer(200, {"object": "list", "data": models if options.step >= 2 else []})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        if options.step < 3:
            self.answer(503, {"error": {"message": "still warming up"}})
        elif body["model"] == "org/model" and self.path == PATHS.get(options.task):
            field = "data" if options.task == "embedding" else "choices"
            self.answer(200, {field: [{"index": 0}]})
        elif options.task == "none":
            self.answer(404, {"detail": "Not Found"})
        else:
            self.answer(400, {"error": {"message": f"The model does not support {self.path}"}})

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    allow_reuse_port = options.reuse_port
    daemon_threads = True


def say(line):
    # In one write: who waits for the line must not see half of it.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def step(*_):
    options.step += 1
    if options.step == 1:
        server.server_activate()
        threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"step {options.step}")


if options.strange_port:
    strange = socket.create_server(("127.0.0.1", 0))

    def babble():
        while True:
            peer, _ = strange.accept()
            peer.sendall(b"\xff\x00\x01\x7f NOT HTTP\n")
            peer.close()

    threading.Thread(target=babble, daemon=True).start()
server = Server((options.host, options.port), Handler, bind_and_activate=False)
server.server_bind()
wanted, options.step = options.step, 0
signal.signal(signal.SIGUSR1, step)
while options.step < wanted:
    step()
say(f"bound {server.server_address[1]}")
while True:
    signal.pause()
