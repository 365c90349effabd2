#!/usr/bin/env python3
"""A client of sandboxd, written from docs/protocol.md. Standard library only.

As a program it runs one command and exits with its status:

    sbxclient.py [--socket PATH] -- COMMAND [ARGS...]
"""

import base64
import collections
import json
import os
import random
import secrets
import socket
import stat
import struct
import sys

LONGEST_ANSWER = 8 << 20  # until the daemon's hello says otherwise


class ProtocolError(Exception):
    """An error that the daemon sent. Its members are in .answer."""

    def __init__(self, answer):
        self.answer = answer
        self.code = answer["code"]
        super().__init__("%s: %s" % (self.code, answer.get("message", "")))


class Closed(Exception):
    """The daemon has closed the connection."""


def to_bytes(value):
    """What a member of the type "bytes" is in JSON."""
    raw = os.fsencode(value)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


def variables(env):
    return [{"name": to_bytes(k), "value": to_bytes(v)} for k, v in env.items()]


def grease():
    return "grease-" + secrets.token_hex(4)


def candidates():
    """Where a daemon may listen, the best first."""
    if os.environ.get("SANDBOXD_SOCKET"):
        return [os.environ["SANDBOXD_SOCKET"]]
    home, mac, paths = os.path.expanduser("~"), sys.platform == "darwin", []
    if mac:
        paths.append(home + "/Library/Application Support/sandboxd/socket")
    else:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        if runtime.startswith("/") and os.path.isdir(runtime):
            st = os.lstat(runtime)
            if st.st_uid == os.geteuid() and st.st_mode & 0o077 == 0:
                paths.append(runtime + "/sandboxd/socket")
        state = os.environ.get("XDG_STATE_HOME", "")
        paths.append((state if state.startswith("/") else home + "/.local/state") + "/sandboxd/socket")
    return paths + [("/var" if mac else "") + "/run/sandboxd/socket"]


def check_place(path):
    """Raises PermissionError if another user could have put the socket there."""
    st = os.lstat(os.path.dirname(os.path.abspath(path)))
    if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022 or not stat.S_ISDIR(st.st_mode):
        raise PermissionError(f"{path}: others than root and this user may write to its directory")


def connect(path=None):
    """A connected socket: to the path, else to the first candidate at which a daemon listens."""
    places = [path] if path else candidates()
    for place in places:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            check_place(place)
            sock.connect(place)
            return sock
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            if place == places[-1]:
                raise
        except OSError:
            sock.close()
            raise


class Client:
    """One connection. It is for one thread at a time."""

    def __init__(self, path=None, versions=(1,)):
        self.sock = connect(path)
        self.last_id = 0
        self.longest = LONGEST_ANSWER
        self.inbox = collections.defaultdict(collections.deque)  # by id
        # In any order, with what a daemon must ignore.
        offered = list(versions) + [(1 << 40) + random.randrange(1 << 40)]
        random.shuffle(offered)
        self.send({
            "type": "hello", "versions": offered, "client": {"name": "sbxclient.py", "version": "1"},
            "capabilities": [grease(), grease()],
        })
        self.hello = self.receive()
        if self.hello["type"] == "error":
            raise ProtocolError(self.hello)
        if self.hello["type"] != "hello" or self.hello["version"] not in versions:
            raise Closed("the daemon's hello is none: %r" % self.hello)
        self.limits = self.hello["limits"]
        self.longest = self.limits["answer_bytes"]
        self.capabilities = {c["name"] for c in self.hello["capabilities"]}

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Frames.

    def send(self, message, fds=()):
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        self.send_raw(struct.pack(">I", len(text)) + text, fds)

    def send_raw(self, frame, fds=()):
        if fds:  # with the frame's first byte
            frame = frame[socket.send_fds(self.sock, [frame], list(fds)):]
        self.sock.sendall(frame)

    def _read(self, n):
        parts = []
        while n > 0:
            part = self.sock.recv(min(n, 1 << 16))
            if not part:
                raise Closed("the daemon has closed the connection")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def receive(self):
        """The next message, whatever it belongs to."""
        (n,) = struct.unpack(">I", self._read(4))
        if n == 0 or n > self.longest:
            raise Closed("a frame of %d bytes" % n)
        message = json.loads(self._read(n).decode("utf-8"))
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise Closed("a frame that is no message")
        return message

    # Requests.

    def start(self, type, fds=(), **members):
        """Sends a request and returns its id."""
        self.last_id += 1
        self.send({"type": type, "id": self.last_id, **members}, fds)
        return self.last_id

    def next(self, id, types):
        """The next message of the request; of types that are not named, none."""
        while True:
            while self.inbox[id]:
                message = self.inbox[id].popleft()
                if message["type"] in types or message["type"] == "error":
                    return message
            message = self.receive()
            if message["type"] == "error" and "id" not in message:
                raise ProtocolError(message)
            if isinstance(message.get("id"), int):  # else grease, or of a later day
                self.inbox[message["id"]].append(message)

    def call(self, type, **members):
        """Sends a request and returns its final answer."""
        id = self.start(type, **members)
        answer = self.next(id, ["pong" if type == "ping" else type + "-result"])
        del self.inbox[id]
        if answer["type"] == "error":
            raise ProtocolError(answer)
        return answer

    def ping(self):
        return self.call("ping")

    def list(self, **members):
        answer = self.call("list", **members)
        return answer["workers"]

    def inspect(self, worker):
        return self.call("inspect", worker=worker)

    def health(self):
        return self.call("health")

    def cancel(self, **members):
        return self.call("cancel", **members)

    def signal(self, name, **members):
        return self.call("signal", signal=name, **members)

    def subscribe(self, *kinds):
        return Subscription(self, kinds)

    def launch(self, argv, window=1 << 16, fds=(), stdio=None, cwd=None, env=None, **members):
        """Starts a command. Output comes as a stream unless stdio says otherwise."""
        if stdio is None and "tty" not in members:
            stdio = {"stdin": "stream", "stdout": "stream", "stderr": "stream"}
        if stdio is not None:
            members["stdio"] = stdio
        if env:
            members["env"] = variables(env)
        id = self.start(
            "launch", fds, argv=[to_bytes(a) for a in argv], dir=to_bytes(cwd or os.getcwd()),
            host_env=variables(os.environb), output_window=window, **members)
        return Launch(self, id, window)


class Launch:
    """A launch that was asked for."""

    TYPES = ["started", "output", "credit", "exit", "planned"]

    def __init__(self, client, id, window):
        self.client, self.id, self.window = client, id, window
        self.started = self.exit = None
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self.ended = set()
        self.to_send, self.sent, self.room, self.eof = b"", 0, 0, False
        self.used = collections.Counter()

    def step(self):
        """Takes one message of the launch."""
        m = self.client.next(self.id, self.TYPES)
        if m["type"] == "error":
            if m.get("of") not in ("stdin", "credit") and m["code"] != "id-in-use":
                self.exit = m
            raise ProtocolError(m)
        if m["type"] == "started":
            self.started = m
            self.room = m.get("stdin_window", 0)
        elif m["type"] == "credit":
            self.room += m["bytes"]
        elif m["type"] == "output":
            self._take(m)
        else:
            self.exit = m
            del self.client.inbox[self.id]
        return m

    def _take(self, m):
        stream, data = m["stream"], base64.b64decode(m["data"], validate=True)
        if m["offset"] != len(self.output[stream]) or stream in self.ended:
            raise Closed("a gap in %s: %r" % (stream, m["offset"]))
        self.output[stream] += data
        self.used[stream] += len(data)
        if self.used[stream] > self.window:
            raise Closed("more of %s than was granted" % stream)
        if m.get("eof"):
            self.ended.add(stream)
        elif self.used[stream] * 2 >= self.window > 0:
            self.client.send({"type": "credit", "id": self.id, "stream": stream, "bytes": self.used[stream]})
            self.used[stream] = 0

    def wait_started(self):
        while self.started is None and self.exit is None:
            self.step()
        return self.started

    def write(self, data, eof=False):
        """Sends standard input, as fast as the daemon takes it."""
        self.wait_started()
        while (data or eof) and self.exit is None:
            n = min(len(data), self.room, self.client.limits["chunk_bytes"])
            if n == 0 and data:
                self.step()  # credit may come
                continue
            last = eof and n == len(data)
            self.client.send({
                "type": "stdin", "id": self.id, "offset": self.sent,
                "data": base64.b64encode(data[:n]).decode("ascii"), **({"eof": True} if last else {}),
            })
            self.sent, self.room, data, eof = self.sent + n, self.room - n, data[n:], eof and not last

    def wait(self):
        """Takes all that comes, and returns the final answer."""
        while self.exit is None:
            self.step()
        return self.exit

    def communicate(self, data=b""):
        """Standard input to its end, and (stdout, stderr, report)."""
        self.write(data, eof=True)
        answer = self.wait()
        return bytes(self.output["stdout"]), bytes(self.output["stderr"]), answer["report"]


class Subscription:
    """Events, from now on."""

    def __init__(self, client, kinds):
        self.client = client
        self.id = client.start("subscribe", events=list(kinds) + [grease()])
        answer = client.next(self.id, ["subscribed"])
        if answer["type"] == "error":
            raise ProtocolError(answer)
        self.kinds, self.seq = answer["events"], 0

    def next(self):
        """The next event; None after the last one."""
        m = self.client.next(self.id, ["event", "subscribe-result"])
        if m["type"] == "error":
            raise ProtocolError(m)
        if m["type"] == "subscribe-result":
            return None
        self.seq += 1 + m.get("lost", 0)
        if m["seq"] != self.seq:
            raise Closed("event %d after %d" % (m["seq"], self.seq))
        return m

    def end(self):
        return self.client.call("unsubscribe", subscription=self.id)


def main(argv):
    path = None
    if argv[:1] == ["--socket"]:
        path, argv = argv[1], argv[2:]
    if argv[:1] == ["--"]:
        argv = argv[1:]
    if not argv:
        sys.exit(__doc__)
    try:
        with Client(path) as client:
            stdio = {"stdin": "descriptor", "stdout": "descriptor", "stderr": "descriptor"}
            answer = client.launch(argv, stdio=stdio, fds=(0, 1, 2)).wait()
            for word in ("message", "hint"):
                if word in answer:
                    print("sbxclient: %s" % ascii(answer[word]), file=sys.stderr)
            return answer["report"]["exit_status"]
    except (ProtocolError, Closed, OSError) as e:
        print("sbxclient: %s" % ascii(str(e)), file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
