"""Starts `minfer serve` and talks to it over plain sockets. For soak.py, browser.py and serve_peers.py; standard library only."""

import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request


class Server:
    """A server on a port of its own. Use it in a `with`: its end is checked by `stop`."""

    def __init__(self, program, model, *options, env=None, wait=120):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        command = [program, "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={**os.environ, **(env or {})})
        try:
            self.port = self._port(wait)
            self._until_ready(wait)
        except BaseException:
            self.kill()
            raise

    def said(self):
        with open(self.log.name, errors="replace") as log:
            return log.read()

    def _port(self, wait):
        end = time.monotonic() + wait
        while time.monotonic() < end:
            found = re.search(r"127\.0\.0\.1:([1-9]\d*)", self.said())
            if found:
                return int(found[1])
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.said()}")
            time.sleep(0.05)
        raise RuntimeError(f"no address after {wait} s:\n{self.said()}")

    def _until_ready(self, wait):
        end = time.monotonic() + wait
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"not healthy after {wait} s:\n{self.said()}")

    def resident(self):
        """Resident memory in bytes (Linux)."""
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError("the server has no resident memory: has it ended?")

    def stop(self, wait=60):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(wait)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class Answer:
    """Status, headers (names in lower case) and body of an answer."""

    def __init__(self, status, headers, body=b""):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Call:
    """A request on a connection of its own, whose answer is read piece by piece and which can be cut at any time."""

    def __init__(self, port, path, body=None, method=None, headers=None, raw=None):
        self.port, self.path = port, path
        self.body = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
        self.method = method or ("GET" if body is None and raw is None else "POST")
        self.headers = headers or {}
        self.reader = self.writer = None

    async def send(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = [f"{self.method} {self.path} HTTP/1.1", f"host: 127.0.0.1:{self.port}", "connection: close"]
        if self.body or self.method == "POST":
            head += ["content-type: application/json", f"content-length: {len(self.body)}"]
        head += [f"{name}: {value}" for name, value in self.headers.items()]
        self.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + self.body)
        await self.writer.drain()

    async def head(self):
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
        headers = {name.lower().strip(): value.strip() for name, value in pairs}
        return Answer(int(lines[0].split()[1]), headers)

    async def pieces(self, headers):
        """The body as it comes."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                yield await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            return
        if "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        while piece := await self.reader.read(1 << 16):
            yield piece

    async def events(self, headers):
        """Times and data of server-sent events, `[DONE]` too."""
        rest = b""
        async for piece in self.pieces(headers):
            now = time.monotonic()
            *blocks, rest = (rest + piece).split(b"\n\n")
            for block in blocks:
                for line in block.split(b"\n"):
                    if line.startswith(b"data:"):
                        yield now, line[5:].strip().decode()

    def cut(self):
        """Ends the connection at once, as a client that was killed does."""
        if self.writer:
            self.writer.transport.abort()

    async def close(self):
        if self.writer:
            self.writer.close()
            try:
                await self.writer.wait_closed()
            except OSError:
                pass


async def ask(port, path, body=None, limit=600, **options):
    """A whole answer."""
    call = Call(port, path, body, **options)
    try:
        async with asyncio.timeout(limit):
            await call.send()
            answer = await call.head()
            answer.body = b"".join([piece async for piece in call.pieces(answer.headers)])
            return answer
    finally:
        await call.close()


class Streamed:
    """What a stream said, and when."""

    def __init__(self):
        self.status, self.text, self.times = None, "", []
        self.finish = self.usage = self.error = None
        self.done = False

    def take(self, when, data):
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        self.error = event.get("error") or self.error
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            self.text += choice.get("text") or delta.get("content") or ""
            self.finish = choice.get("finish_reason") or self.finish
            self.times.append(when)


async def stream(port, path, body, into=None, limit=600):
    """A stream read to its end. `into` is filled meanwhile, for those who watch it."""
    got = into or Streamed()
    call = Call(port, path, {**body, "stream": True})
    try:
        async with asyncio.timeout(limit):
            await call.send()
            answer = await call.head()
            got.status = answer.status
            if answer.status != 200:
                got.error = b"".join([piece async for piece in call.pieces(answer.headers)]).decode(errors="replace")
                return got
            async for when, data in call.events(answer.headers):
                got.take(when, data)
    finally:
        await call.close()
    return got


async def metric(port, name):
    """Sum of a metric over its labels."""
    text = (await ask(port, "/metrics", limit=10)).body.decode()
    values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
    if not values:
        raise RuntimeError(f"/metrics has no {name}")
    return sum(map(float, values))


WORDS = """the river under old stone bridges carries leaves and light toward a quiet harbour where ships wait for
morning people walk along narrow streets and talk about winter music paper gardens numbers and long stories""".split()


def words(n, seed=0):
    """A text of n words, the same for the same seed."""
    x = seed * 2654435761 + 12345
    out = []
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out.append(WORDS[(x >> 33) % len(WORDS)])
    return " ".join(out)
