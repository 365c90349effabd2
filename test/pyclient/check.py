#!/usr/bin/env python3
"""Tries a daemon through sbxclient.py: check.py SOCKET [NAME...]

Each check is a connection of its own. What is checked is what docs/protocol.md
promises of any daemon; the commands need a shell and its usual tools.
"""

import glob
import json
import os
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sbxclient import Client, Closed, ProtocolError  # noqa: E402

PATH = sys.argv[1]
TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../protocol/testdata")


def connect(**kw):
    client = Client(PATH, **kw)
    client.sock.settimeout(20)
    return client


def refused(code, call, **want):
    try:
        call()
    except ProtocolError as e:
        assert e.code == code, (code, e.answer)
        for k, v in want.items():
            assert e.answer.get(k) == v, (k, v, e.answer)
        return e.answer
    raise AssertionError("it was not refused with " + code)


def check_hello():
    with connect() as c:
        assert c.hello["version"] == 1 and c.hello["uid"] == os.getuid(), c.hello
        for limit in ("frame_bytes", "answer_bytes", "depth", "chunk_bytes", "window_bytes", "requests"):
            assert c.limits[limit] > 0, limit
        assert all(isinstance(x["since"], str) for x in c.hello["capabilities"])
        c.ping()


def check_versions():
    answer = refused("version", lambda: connect(versions=(2, 3)), fatal=True)
    assert answer["versions"] == [1], answer


def check_second_hello():
    with connect() as c:
        c.send({"type": "hello", "versions": [1], "client": {"name": "x", "version": ""}})
        assert c.receive_error()["code"] == "hello-repeated"
        c.ping()


def check_streams():
    with connect() as c:
        out, err, report = c.launch(["sh", "-c", "echo out; echo err >&2; exit 3"]).communicate()
        assert (out, err, report["exit_status"]) == (b"out\n", b"err\n", 3), (out, err, report)
        assert report["outcome"] == {"kind": "exited", "code": 3}, report["outcome"]


def check_bytes():
    with connect() as c:
        out, _, _ = c.launch(["printf", "%s", b"\xff\xfe\n caf\xe9"]).communicate()
        assert out == b"\xff\xfe\n caf\xe9", out
        out, _, _ = c.launch(["sh", "-c", 'printf %s "$VALUE"'], env={"VALUE": b"\xc3\x28"}).communicate()
        assert out == b"\xc3\x28", out


def check_flow():
    """Much more than any window, both ways at once, is not changed."""
    data = os.urandom(1 << 20)
    with connect() as c:
        out, _, report = c.launch(["cat"], window=40000).communicate(data)
        assert out == data and report["exit_status"] == 0, len(out)


def check_no_credit():
    """A launch without credit holds up nothing else, and goes on with it."""
    with connect() as c:
        held = c.launch(["sh", "-c", "echo held"], window=0)
        held.wait_started()
        out, _, _ = c.launch(["echo", "free"]).communicate()
        assert out == b"free\n" and not held.output["stdout"], held.output
        held.window = 100
        c.send({"type": "credit", "id": held.id, "stream": "stdout", "bytes": 100})
        held.write(b"", eof=True)
        held.wait()
        assert held.output["stdout"] == b"held\n"


def check_offset():
    with connect() as c:
        launch = c.launch(["cat"])
        launch.wait_started()
        launch.sent = 4
        launch.write(b"gap")
        refused("bad-offset", launch.step, of="stdin", fatal=False)
        launch.sent = 0
        launch.write(b"no ")
        out, _, _ = launch.communicate(b"gap")
        assert out == b"no gap", out


def check_flow_control():
    with connect() as c:
        launch = c.launch(["sleep", "100"])
        launch.wait_started()
        launch.room = 8 << 20  # more than any pipe takes
        try:
            launch.write(b"x" * launch.room)
        except ConnectionError:
            pass  # closed before all of it was sent
        refused("flow-control", launch.wait, fatal=True)


def check_many_at_once():
    with connect() as c:
        launches = [c.launch(["sh", "-c", "read x; echo ${x}%d" % i], label="l%d" % i) for i in range(5)]
        for launch in launches:
            launch.wait_started()
        workers = {w["label"]: w for w in c.list() if w.get("label")}
        for i, launch in enumerate(launches):
            assert workers["l%d" % i]["worker"] == launch.started["worker"], workers
        info = c.inspect(launches[2].started["worker"])["info"]
        assert info["state"] == "running" and info["label"] == "l2" and info["pid"] == launches[2].started["pid"], info
        assert c.health()["status"] == "ok"
        for i, launch in reversed(list(enumerate(launches))):
            out, _, report = launch.communicate(b"n\n")
            assert out == b"n%d\n" % i and report["exit_status"] == 0, (i, out)
        assert not [w for w in c.list() if w.get("label", "").startswith("l")]


def check_signal():
    with connect() as c:
        launch = c.launch(["sh", "-c", "trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done"])
        while b"ready" not in launch.output["stdout"]:
            launch.step()
        c.signal("SIGUSR1", worker=launch.started["worker"])
        answer = launch.wait()
        assert launch.output["stdout"] == b"ready\ncaught\n" and answer["report"]["exit_status"] == 7, answer
        refused("not-found", lambda: c.signal("SIGUSR1", launch=launch.id))


def check_cancel():
    with connect() as c, connect() as other:
        one, two = c.launch(["sleep", "1000"]), c.launch(["sleep", "1000"])
        one.wait_started(), two.wait_started()
        c.cancel(launch=one.id, grace_ms=100)
        other.cancel(worker=two.started["worker"])  # of any connection of the user
        for launch in (one, two):
            assert launch.wait()["report"]["exit_status"] != 0
        refused("not-found", lambda: c.cancel(launch=one.id))
        refused("not-found", lambda: c.inspect("0" * 32))


def check_close_ends_workers():
    with connect() as c, connect() as other:
        launch = c.launch(["sleep", "1000"])
        worker = launch.wait_started()["worker"]
        assert any(w["worker"] == worker for w in other.list())
        c.close()
        for _ in range(200):
            if not any(w["worker"] == worker for w in other.list()):
                return
            time.sleep(0.05)
        raise AssertionError("the worker outlives its connection")


def check_not_found():
    with connect() as c:
        launch = c.launch(["/nonexistent/command"])
        try:
            answer = launch.wait()
        except ProtocolError as e:
            assert e.code == "refused", e.answer
            return
        assert answer["report"]["ran"] is False and answer["report"]["exit_status"] in (126, 127) and answer["message"], answer


def check_descriptors():
    with connect() as c:
        if "descriptors" not in c.capabilities:
            return
        (r1, w1), (r2, w2) = os.pipe(), os.pipe()
        launch = c.launch(
            ["sh", "-c", "echo one; echo two >&9"], stdio={"stdout": "descriptor"}, fds=(w1, w2), descriptors=[{"to": 9}])
        answer = launch.wait()
        os.close(w1), os.close(w2)
        with open(r1, "rb") as one, open(r2, "rb") as two:
            assert (one.read(), two.read()) == (b"one\n", b"two\n"), answer
        r, w = os.pipe()
        refused("bad-descriptors", c.launch(["true"], stdio={"stdout": "descriptor"}).wait)
        refused("bad-descriptors", c.launch(["true"], fds=(w,), stdio={}).wait)
        c.ping()
        os.close(w)
        with open(r, "rb") as rest:
            assert rest.read() == b""  # the daemon has closed what it refused


def check_events():
    with connect() as c:
        s = c.subscribe("worker-started", "worker-ended")
        assert s.kinds == ["worker-started", "worker-ended"], s.kinds
        launch = c.launch(["true"], label="seen")
        launch.communicate()
        seen = []
        while len(seen) < 2:
            e = s.next()
            if e["info"].get("label") == "seen":
                seen.append(e["kind"])
        assert seen == ["worker-started", "worker-ended"], seen
        s.end()
        while s.next() is not None:
            pass
        refused("not-found", s.end)


def frame(text):
    return struct.pack(">I", len(text)) + text


def check_errors():
    """A mistake is answered with its code, and the connection goes on."""
    with connect() as c:
        for text, code, field in [
            (b'{"type":"list","id":1,"ended":true,"all":1}', "unknown-field", "all"),
            (b'{"type":"list","id":1,"Ended":true}', "unknown-field", "Ended"),
            (b'{"type":"list","id":1,"ended":1}', "wrong-type", "ended"),
            (b'{"type":"list","id":1,"ended":true,"\\u0065nded":true}', "duplicate-field", "ended"),
            (b'{"type":"teleport","id":1}', "unknown-type", "type"),
            (b'{"type":"list","id":1.0}', "bad-id", "id"),
            (b'{"type":"launch","id":1,"argv":["a\\u0000"]}', "nul", "argv[0]"),
            (b'{"type":"launch","id":1,"argv":["\xff"]}', "not-utf8", "argv[0]"),
            (b'{"type":"launch","id":1,"argv":["\\ud800"]}', "not-utf8", "argv[0]"),
            (b'{"type":"launch","id":1,"argv":"true"}', "wrong-type", "argv"),
            (b'{"type":"ping","id":1,"x":' + b"[" * 20 + b"]" * 20 + b"}", "too-deep", "x" + "[0]" * 15),
        ]:
            c.send_raw(frame(text))
            answer = c.receive_error()
            assert (answer["code"], answer["field"], answer["fatal"]) == (code, field, False), (text, answer)
            c.ping()


def check_id_in_use():
    with connect() as c:
        launch = c.launch(["cat"])
        launch.wait_started()
        c.send({"type": "ping", "id": launch.id})
        refused("id-in-use", launch.step, of="ping")
        c.send({"type": "launch", "id": launch.id, "unknown": 1})  # whatever else is wrong with it
        refused("id-in-use", launch.step, of="launch")
        out, _, _ = launch.communicate(b"still here")
        assert out == b"still here", out


def check_fatal():
    """What cannot be trusted is answered, and then the connection is closed."""
    for raw, code in [
        (struct.pack(">I", 0), "frame-empty"),
        (struct.pack(">I", (1 << 32) - 1), "frame-too-large"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame-too-large"),
        (frame(b'{"type":"ping","id":1}{}'), "bad-json"),
        (frame(b'{"type":"ping","id":1,}'), "bad-json"),
        (frame(b"\xef\xbb\xbf" + b'{"type":"ping","id":1}'), "bad-json"),
    ]:
        with connect() as c:
            c.send_raw(raw)
            answer = c.receive_error()
            assert (answer["code"], answer["fatal"]) == (code, True), (raw, answer)
            try:
                while True:
                    c.receive()
            except (Closed, ConnectionError):
                pass


def check_hello_first():
    class Silent(Client):
        def send(self, message, fds=()):
            if message["type"] == "hello":
                message = {"type": "ping", "id": 1}
            super().send(message, fds)

    refused("hello-expected", lambda: Silent(PATH), fatal=True)


def check_a_byte_at_once():
    with connect() as c:
        for b in frame(b'{"type":"ping","id":77}'):
            c.send_raw(bytes([b]))
        assert c.next(77, ["pong"])["id"] == 77


# The codes of a message that was not understood.
NOT_UNDERSTOOD = {
    "bad-json", "not-utf8", "duplicate-field", "too-deep", "too-long", "too-many", "unknown-type", "unknown-field", "missing-field",
    "wrong-type", "out-of-range", "bad-value", "nul", "bad-id",
}


def messages(pattern, least):
    files = sorted(glob.glob(os.path.join(TESTDATA, pattern)))
    assert len(files) >= least, (pattern, len(files))
    for file in files:
        with open(file, "rb") as f:
            yield os.path.basename(file), f.read()


def raw_connection():
    """A connection that has not said hello."""
    c = Client.__new__(Client)
    c.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    c.sock.settimeout(20)
    c.sock.connect(PATH)
    c.longest = 8 << 20
    return c


def answer_to(text, message, fds=()):
    """What a message is answered with, on a connection of its own."""
    if message["type"] == "hello":
        with raw_connection() as c:
            c.send_raw(frame(text))
            return c.receive()
    with connect() as c:
        c.send_raw(frame(text), fds)
        if message["type"] in ("stdin", "credit"):  # have an answer only if they are wrong
            c.send({"type": "ping", "id": 999})
        while True:
            m = c.receive()
            if m["type"] == "error" or isinstance(m.get("id"), int):
                return m


def check_older_client():
    """Every message of version 1 is understood by the daemon of today."""
    for name, text in messages("golden/v1/requests/*.json", 20):
        message = json.loads(text)
        with open(os.devnull) as null:
            stdio = list(message.get("stdio", {}).values()).count("descriptor")
            answer = answer_to(text, message, [null.fileno()] * (stdio + len(message.get("descriptors", ()))))
        if message["type"] == "hello":
            assert answer["type"] == "hello" and answer["version"] == 1, (name, answer)
        elif message["type"] in ("stdin", "credit"):
            assert answer["type"] == "pong", (name, answer)
        else:
            assert answer["id"] == message["id"], (name, answer)
            assert answer.get("code") not in NOT_UNDERSTOOD | {"bad-descriptors"}, (name, answer)


def check_newer_client():
    """What a later client sends is answered as it was promised, and not with a hang-up."""
    for name, text in messages("newer/*.json", 10):
        case = json.loads(text)
        sent = json.dumps(case["sent"], separators=(",", ":")).encode()
        answer, want = answer_to(sent, case["sent"]), case["answer"]
        if want is None:
            assert answer["type"] != "error", (name, answer)
            continue
        for member in ("id", "of", "code", "field", "fatal", "retryable", "versions"):
            assert answer.get(member) == want.get(member), (name, member, answer)


def check_at_the_same_time():
    """Connections do not disturb each other."""
    failures = []

    def one(i):
        try:
            with connect() as c:
                for _ in range(5):
                    data = b"%d" % i * 20000
                    out, _, _ = c.launch(["cat"], window=8192).communicate(data)
                    assert out == data
        except Exception as e:  # told below
            failures.append(repr(e))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


def receive_error(client):
    """The next error, whatever it belongs to."""
    while True:
        message = client.receive()
        if message["type"] == "error":
            return message


Client.receive_error = receive_error


def main():
    checks = {k[len("check_"):]: v for k, v in globals().items() if k.startswith("check_")}
    for name in sys.argv[2:] or checks:
        checks[name]()
        print("ok", name, flush=True)


if __name__ == "__main__":
    main()
