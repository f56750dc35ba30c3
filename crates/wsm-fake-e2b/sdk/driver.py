"""Drives the fake with the official Python SDK: what works here works as the SDK expects it to.

Wants E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL in its environment. Prints `ok` with a name for what holds, and `FAILED` with
a name for what does not. Its last line begins with `end`.
"""

import io
import json
import os
import time
import traceback
import urllib.request
import uuid

from e2b import (
    CommandExitException,
    FileType,
    NotFoundException,
    Sandbox,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.exceptions import AuthenticationException, InvalidArgumentException, SandboxException
from e2b.sandbox.commands.command_handle import PtySize

API = os.environ["E2B_API_URL"]
RUN = uuid.uuid4().hex[:8]
CASES = []


def case(function):
    CASES.append(function)
    return function


def create(**options):
    options.setdefault("timeout", 120)
    return Sandbox.create(**options)


def raises(kind, work):
    try:
        work()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind}")


def eventually(condition, patience=5.0):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def fake(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{API}/__fake/{path}", data=data, method=method)
    with urllib.request.urlopen(request) as response:
        text = response.read()
    return json.loads(text) if text else None


def all_pages(paginator):
    pages = []
    while paginator.has_next:
        pages.append(paginator.next_items())
    return pages


# The control plane.


@case
def create_info_kill(_):
    made = create(metadata={"app": "driver"}, envs={"GLOBAL": "g"})
    info = made.get_info()
    assert info.sandbox_id == made.sandbox_id and info.state == SandboxState.RUNNING
    assert info.metadata == {"app": "driver"}
    assert made.is_running()
    assert made.commands.run("echo $GLOBAL").stdout == "g\n"
    assert made.kill()
    assert not made.is_running()
    assert not Sandbox.kill(made.sandbox_id)
    raises(NotFoundException, lambda: Sandbox.get_info(made.sandbox_id))
    raises(NotFoundException, lambda: Sandbox.connect(made.sandbox_id))


@case
def create_with_idempotency_key(_):
    key = str(uuid.uuid4())
    one = create(idempotency_key=key)
    other = create(idempotency_key=key)
    assert one.sandbox_id == other.sandbox_id
    one.kill()


@case
def unknown_key_and_template(_):
    raises(AuthenticationException, lambda: create(api_key="e2b_" + "f" * 40))
    raises(SandboxException, lambda: create(template="no-such-template"))
    raises(SandboxException, lambda: create(timeout=100_000_000))


@case
def list_by_pages_and_metadata(_):
    mark = {"run": f"{RUN} /ä&=", "plain": RUN}
    made = [create(metadata={**mark, "number": str(number)}) for number in range(5)]
    ids = [sandbox.sandbox_id for sandbox in made]
    pages = all_pages(Sandbox.list(query=SandboxQuery(metadata=mark), limit=2))
    assert [len(page) for page in pages] == [2, 2, 1], pages
    assert [info.sandbox_id for page in pages for info in page] == ids[::-1]
    rising = all_pages(Sandbox.list(query=SandboxQuery(metadata=mark), order="asc"))
    assert [info.sandbox_id for page in rising for info in page] == ids
    one = all_pages(Sandbox.list(query=SandboxQuery(metadata={**mark, "number": "3"})))
    assert [info.sandbox_id for page in one for info in page] == [ids[3]]
    made[1].pause()
    for state, wanted in [(SandboxState.PAUSED, [ids[1]]), (SandboxState.RUNNING, ids[:1] + ids[2:])]:
        pages = all_pages(Sandbox.list(query=SandboxQuery(metadata=mark, state=[state])))
        assert sorted(info.sandbox_id for page in pages for info in page) == sorted(wanted)
    for sandbox in made:
        sandbox.kill()


@case
def pause_connect_keeps_files_and_processes(_):
    made = create()
    made.files.write("/home/user/kept", "yes")
    background = made.commands.run("sleep 1000", background=True, timeout=0)
    assert made.pause() is True
    assert made.pause() is False
    assert made.get_info().state == SandboxState.PAUSED
    assert not made.is_running()
    again = Sandbox.connect(made.sandbox_id, timeout=60)
    assert again.sandbox_id == made.sandbox_id and again.is_running()
    assert again.files.read("/home/user/kept") == "yes"
    assert background.pid in [process.pid for process in again.commands.list()]
    assert again.pause(keep_memory=False)
    again = Sandbox.connect(made.sandbox_id)
    assert again.files.read("/home/user/kept") == "yes"
    assert again.commands.list() == []
    again.kill()


@case
def timeouts_kill_or_pause(_):
    killed = create()
    killed.set_timeout(1)
    eventually(lambda: not killed.is_running())
    raises(NotFoundException, killed.get_info)
    paused = create(lifecycle={"on_timeout": "pause"}, timeout=1)
    eventually(lambda: paused.get_info().state == SandboxState.PAUSED)
    woken = Sandbox.connect(paused.sandbox_id, timeout=60)
    assert woken.is_running()
    fake("POST", "clock", {"advance_seconds": 61})
    assert paused.get_info().state == SandboxState.PAUSED
    paused.kill()


@case
def traffic_wakes(_):
    made = create(lifecycle={"on_timeout": "pause", "auto_resume": True})
    made.files.write("/tmp/x", "1")
    made.pause()
    assert made.files.read("/tmp/x") == "1"
    assert made.get_info().state == SandboxState.RUNNING
    made.kill()


@case
def metrics_network_snapshot_fork(box):
    assert box.get_metrics()[0].cpu_count > 0
    box.update_network({"deny_out": ["0.0.0.0/0"]})
    box.files.write("/home/user/snapped", "s")
    snapshot = box.create_snapshot()
    ids = [found.snapshot_id for page in all_pages(Sandbox.list_snapshots()) for found in page]
    assert snapshot.snapshot_id in ids
    copy = create(template=snapshot.snapshot_id)
    assert copy.files.read("/home/user/snapped") == "s"
    copy.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id)


@case
def retries_what_the_server_asks_for(_):
    fake("POST", "faults", {"on": {"operation": "create"}, "times": 2,
                            "what": [{"answer": {"status": 503, "body": "busy"}}]})
    made = create()
    fake("POST", "faults", {"on": {"operation": "get"},
                            "what": [{"answer": {"status": 429, "headers": [["Retry-After", "1"]]}}]})
    before = time.monotonic()
    made.get_info()
    assert time.monotonic() - before > 0.9
    body = json.dumps({"code": 500, "message": "boom"})
    fake("POST", "faults", {"on": {"operation": "get"}, "what": [{"answer": {"status": 500, "body": body}}]})
    raises(SandboxException, made.get_info)
    assert fake("GET", "faults") == []
    made.kill()


# Commands.


@case
def output_and_exit_code(box):
    result = box.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    error = raises(CommandExitException, lambda: box.commands.run("echo o; echo e >&2; exit 7"))
    assert (error.exit_code, error.stdout, error.stderr) == (7, "o\n", "e\n")
    error = raises(CommandExitException, lambda: box.commands.run("no-such-program"))
    assert error.exit_code == 127
    parts = []
    box.commands.run("for i in 1 2 3; do echo $i; sleep 0.05; done", on_stdout=parts.append)
    assert "".join(parts) == "1\n2\n3\n" and len(parts) == 3
    big = box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(big.stdout) == 3_000_000


@case
def environment_directory_user(box):
    result = box.commands.run("echo $A; pwd; whoami", envs={"A": "1 ä"}, cwd="/tmp")
    assert result.stdout == "1 ä\n/tmp\nuser\n", result
    assert box.commands.run("whoami; pwd", user="root").stdout == "root\n/root\n"
    assert box.commands.run("pwd; echo $HOME").stdout == "/home/user\n/home/user\n"
    raises(InvalidArgumentException, lambda: box.commands.run("true", cwd="/no/such"))
    raises(AuthenticationException, lambda: box.commands.run("true", user="nosuch"))


@case
def stdin_background_kill(box):
    command = box.commands.run("cat", background=True, stdin=True, timeout=0)
    assert command.pid in [process.pid for process in box.commands.list()]
    box.commands.send_stdin(command.pid, "hello\n")
    box.commands.stream_input(command.pid, ["a", b"b", "c\n"])
    box.commands.close_stdin(command.pid)
    assert command.wait().stdout == "hello\nabc\n"
    raises(NotFoundException, lambda: box.commands.send_stdin(command.pid, "x"))

    command = box.commands.run("sleep 1000", background=True, timeout=0)
    assert command.kill()
    error = raises(CommandExitException, command.wait)
    assert error.exit_code == -1 and error.error == "signal: killed"
    assert not box.commands.kill(command.pid)
    # The pid is one that other commands see.
    command = box.commands.run("sleep 1000", background=True, timeout=0)
    box.commands.run(f"kill -TERM {command.pid}")
    assert raises(CommandExitException, command.wait).error == "signal: terminated"


@case
def only_the_direct_process_is_killed(box):
    command = box.commands.run("sleep 777 & echo $!; wait", background=True, timeout=0)
    child = None
    for out, _, _ in command:
        child = int(out)
        break
    command.kill()
    assert box.commands.run(f"kill -0 {child} && echo alive").stdout == "alive\n"
    box.commands.run(f"kill -9 {child}")


@case
def timeout_of_a_command(box):
    before = time.monotonic()
    raises(TimeoutException, lambda: box.commands.run("echo x; sleep 1000", timeout=0.5))
    assert 0.4 < time.monotonic() - before < 5
    eventually(lambda: box.commands.list() == [])


@case
def reconnect_to_a_command(box):
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.1; done; exit 4"
    command = box.commands.run(script, background=True, timeout=0)
    command.disconnect()
    time.sleep(0.3)
    error = raises(CommandExitException, box.commands.connect(command.pid).wait)
    # What came meanwhile is lost.
    assert error.exit_code == 4 and error.stdout.endswith("9\n") and not error.stdout.startswith("1\n")
    # And its end is known for a while.
    assert raises(CommandExitException, box.commands.connect(command.pid).wait).exit_code == 4


@case
def terminal(box):
    handle = box.pty.create(PtySize(rows=24, cols=80), timeout=20)
    box.pty.resize(handle.pid, PtySize(rows=30, cols=90))
    box.pty.send_stdin(handle.pid, b"stty size; tty; exit 0\n")
    seen = b""
    for _, _, data in handle:
        seen += data or b""
    assert b"30 90" in seen and b"/dev/" in seen, seen


# Files.


@case
def files_write_and_read(box):
    text = "text ä €\n"
    assert box.files.write("/home/user/a/b/text", text).path == "/home/user/a/b/text"
    assert box.files.read("/home/user/a/b/text") == text
    assert box.files.read("a/b/text") == text
    assert box.files.read("~/a/b/text") == text
    binary = bytes(range(256)) * 100
    for options in [{}, {"use_octet_stream": True}, {"gzip": True}]:
        box.files.write("/tmp/binary", binary, **options)
        assert box.files.read("/tmp/binary", format="bytes") == binary
    box.files.write("/tmp/stream", io.BytesIO(binary), use_octet_stream=True)
    assert b"".join(box.files.read("/tmp/stream", format="stream")) == binary
    big = os.urandom(20 << 20)
    for use_octet_stream in [True, False]:
        box.files.write("/tmp/big", big, use_octet_stream=use_octet_stream)
        assert box.files.read("/tmp/big", format="bytes") == big
    box.files.write("/tmp/big", b"")
    assert box.files.read("/tmp/big") == ""
    assert box.commands.run("cat a/b/text; stat -c '%U %a' a a/b/text").stdout == text + "user 755\nuser 644\n"
    box.files.write("~/owned", "r", user="root")
    assert box.commands.run("stat -c %U ~/owned", user="root").stdout == "root\n"


@case
def files_several_at_once(box):
    names = ["/tmp/many/one", "/tmp/many/two words", "/tmp/many/drei ä'$x%20+&?#"]
    written = box.files.write_files([{"path": name, "data": name} for name in names])
    assert [one.path for one in written] == names, written
    assert [box.files.read(name) for name in names] == names
    listed = box.files.list("/tmp/many")
    assert sorted(one.path for one in listed) == sorted(names)
    found = box.commands.run("ls -1 /tmp/many").stdout
    assert sorted(found.splitlines()) == sorted(name.rsplit("/", 1)[1] for name in names)
    # In names of parts the client writes quotes in another way.
    for name in ['/tmp/"', "/tmp/-", "/tmp/new\nline", "/tmp/ ", "/tmp/\\", "/tmp/\U0001f600"]:
        box.files.write(name, name, use_octet_stream=True)
        assert box.files.read(name) == name and box.files.get_info(name).path == name


@case
def files_list_stat_move_remove(box):
    base = "/home/user/tree"
    assert box.files.make_dir(f"{base}/d/e") is True
    assert box.files.make_dir(f"{base}/d/e") is False
    box.files.write(f"{base}/f", "xyz", metadata={"key": "value"})
    box.commands.run(f"ln -s f {base}/link; chmod 750 {base}/f")
    listed = {one.name: one for one in box.files.list(base)}
    assert set(listed) == {"d", "f", "link"}
    assert listed["d"].type == FileType.DIR and listed["f"].type == FileType.FILE
    assert listed["link"].symlink_target == f"{base}/f"
    deep = {one.path for one in box.files.list(base, depth=3)}
    assert deep == {f"{base}/d", f"{base}/d/e", f"{base}/f", f"{base}/link"}
    info = box.files.get_info(f"{base}/f")
    assert (info.size, info.mode, info.permissions, info.owner) == (3, 0o750, "-rwxr-x---", "user")
    assert info.metadata == {"key": "value"}, info
    assert abs(info.modified_time.timestamp() - time.time()) < 60
    assert box.files.exists(f"{base}/f") and not box.files.exists(f"{base}/none")
    assert box.files.rename(f"{base}/f", f"{base}/new/g").path == f"{base}/new/g"
    assert not box.files.exists(f"{base}/f") and box.files.read(f"{base}/new/g") == "xyz"
    box.files.remove(base)
    assert not box.files.exists(base)
    box.files.remove(base)
    for missing in [box.files.get_info, box.files.list, box.files.read]:
        raises(NotFoundException, lambda: missing(base))
    raises(NotFoundException, lambda: box.files.rename(base, "/tmp/x"))
    raises(InvalidArgumentException, lambda: box.files.read("/tmp"))
    box.files.write("/tmp/plain", "")
    raises(InvalidArgumentException, lambda: box.files.list("/tmp/plain"))
    assert box.files.list("/opt") == []


@case
def files_watched(box):
    box.files.make_dir("/home/user/watched/below")
    handle = box.files.watch_dir("/home/user/watched", recursive=True, include_entry=True)
    box.files.write("/home/user/watched/below/new", "x")
    seen = []

    def is_seen():
        seen.extend(handle.get_new_events())
        kinds = {event.type.name for event in seen if event.name == "below/new"}
        return {"CREATE", "WRITE"} <= kinds

    eventually(is_seen)
    handle.stop()


@case
def files_by_signed_urls(box):
    box.files.write("/home/user/signed", "s")
    base = os.environ["E2B_SANDBOX_URL"]
    url = box.download_url("/home/user/signed")
    query = url.split("/files?", 1)[1]
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}
    request = urllib.request.Request(f"{base}/files?{query}", headers=headers)
    assert urllib.request.urlopen(request).read() == b"s"
    host = f"49983-{box.sandbox_id}.example.com"
    request = urllib.request.Request(f"{base}/files?{query}", headers={"Host": host})
    assert urllib.request.urlopen(request).read() == b"s"
    request = urllib.request.Request(f"{base}/files?{query}x", headers=headers)
    assert raises(urllib.error.HTTPError, lambda: urllib.request.urlopen(request)).code == 401


def main():
    box = create(timeout=600)
    failed = 0
    for function in CASES:
        try:
            function(box)
            print(f"ok {function.__name__}", flush=True)
        except Exception:
            traceback.print_exc()
            print(f"FAILED {function.__name__}", flush=True)
            failed += 1
    box.kill()
    left = fake("GET", "sandboxes")
    assert failed or left == [], left
    print(f"end: {len(CASES)} cases, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
