#!/usr/bin/env python3
"""Whether `minfer serve` stays up, fair and exact under load.

    scripts/soak.py MINFER MODEL [--tiny TINY] [--requests 10000] [--only memory,health,...]

MINFER is the program to test, MODEL a small real model with a context of 4,608 tokens and more, TINY one for the many
requests of the check of memory (`cargo run -p minfer-testkit --example write_tiny` writes some; MODEL if not given).
A line per check with what was seen; exit status 1 if one fails. Linux only.
"""

import argparse
import asyncio
import random
import signal
import sys
import time

from serving import Call, Server, Streamed, ask, metric, stream, words

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MIB = 1 << 20


class Failed(Exception):
    """A check that does not hold."""


def hold(what, why):
    if not what:
        raise Failed(why)


def completion(prompt, tokens, seed=7, temperature=0.0):
    return {
        "prompt": prompt, "max_tokens": tokens, "seed": seed, "temperature": temperature, "ignore_eos": True,
    }


def running(port, body, path=COMPLETIONS):
    """A stream that runs beside what follows: its task, and what it said so far."""
    got = Streamed()
    return asyncio.create_task(stream(port, path, body, into=got)), got


async def until(holds, limit, every=0.02):
    """Seconds until something holds, or None."""
    start = time.monotonic()
    while time.monotonic() - start < limit:
        if await holds():
            return time.monotonic() - start
        await asyncio.sleep(every)
    return None


async def end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Memory: many mixed requests.

async def mixed(port, kind, rng, chat):
    """One request of a kind; fails if its answer is not what it should be."""
    tokens, seed = rng.randint(1, 12), rng.randint(0, 1 << 30)
    prompt = words(rng.randint(1, 40), seed)
    body = completion(prompt, tokens, seed, rng.choice([0.0, 0.8]))
    if kind == "chat":
        body = {**body, "messages": [{"role": "user", "content": prompt}]}
        del body["prompt"]
        answer = await ask(port, CHAT, body)
        hold(answer.status == (200 if chat else 400), f"chat: {answer.status} {answer.body[:200]}")
    elif kind == "completion":
        answer = await ask(port, COMPLETIONS, body)
        hold(answer.status == 200 and answer.json()["usage"]["completion_tokens"] <= tokens, f"{answer.body[:200]}")
    elif kind == "stream":
        got = await stream(port, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        hold(got.done and got.finish and got.usage and not got.error, f"stream: {got.status} {got.error} {got.done}")
    elif kind == "disconnect":
        call = Call(port, COMPLETIONS, {**body, "max_tokens": 64, "stream": True})
        await call.send()
        if rng.random() < 0.6:
            async for _ in call.events((await call.head()).headers):
                break
        call.cut()
    else:
        await wrong(port, kind, body)


async def wrong(port, kind, body):
    bad = {
        "no json": (400, dict(path=COMPLETIONS, raw=b'{"prompt": ')),
        "unknown field": (400, dict(path=COMPLETIONS, body={**body, "no_such_field": 1})),
        "out of range": (400, dict(path=COMPLETIONS, body={**body, "temperature": -3})),
        "too long": (400, dict(path=COMPLETIONS, body={**body, "prompt": words(9000)})),
        "no model": (404, dict(path=COMPLETIONS, body={**body, "model": "no-such-model"})),
        "no path": (404, dict(path="/v1/no-such-path", body={})),
        "method": (405, dict(path=COMPLETIONS, method="GET")),
    }
    status, options = bad[kind]
    answer = await ask(port, options.pop("path"), options.pop("body", None), **options)
    hold(answer.status == status, f"{kind}: {answer.status} instead of {status}: {answer.body[:200]}")
    hold(answer.json()["error"]["message"], f"{kind}: no message")


KINDS = ["chat"] * 6 + ["completion"] * 5 + ["stream"] * 5 + ["disconnect"] * 3 + [
    "no json", "unknown field", "out of range", "too long", "no model", "no path", "method",
]


async def memory(options):
    with Server(options.minfer, options.tiny or options.model, "--parallel", "4") as server:
        probe = await ask(server.port, CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
        hold(probe.status in (200, 400), f"chat: {probe.status}")
        left, samples, counts = iter(range(options.requests)), [], {}

        async def client(seed):
            rng = random.Random(seed)
            for i in left:
                kind = rng.choice(KINDS)
                await mixed(server.port, kind, rng, probe.status == 200)
                counts[kind] = counts.get(kind, 0) + 1
                if i % 100 == 0:
                    samples.append(server.resident())

        async with asyncio.TaskGroup() as group:
            for seed in range(8):
                group.create_task(client(seed))
        freed = await until(lambda: idle(server.port), 5)
        hold(freed is not None, "sequences still run when all clients are gone")
        samples.append(server.resident())
        hold(server.stop() == 0, "the exit status is not 0")
        hold("panicked" not in server.said(), "a panic in the log")
    after = samples[len(samples) // 5:]
    grown = max(after) - after[0]
    hold(grown < 64 * MIB, f"grew by {grown / MIB:.1f} MiB")
    return f"{sum(counts.values())} requests of {len(counts)} kinds: {after[0] / MIB:.0f} MiB after warm-up, {grown / MIB:+.1f} MiB at most"


async def idle(port):
    return await load(port) == 0


async def load(port):
    """Sequences that run or wait."""
    return await metric(port, "minfer_sequences_running") + await metric(port, "minfer_requests_waiting")


# Health: answers while nothing else can.

async def health(options):
    with Server(options.minfer, options.model, "--parallel", "2", "--max-queue", "8", "-c", "4096") as server:
        port, connections, tasks = server.port, [], []
        try:
            for _ in range(500):
                connections.append((await asyncio.open_connection("127.0.0.1", port))[1])
            for i in range(10):
                tasks.append(running(port, completion(words(20, i), 3000))[0])
                await asyncio.sleep(0.05)
            full = await until(lambda: waiting_is(port, 8), 20)
            hold(full is not None, "the queue never had 8 requests")
            over = [await refused(port)]
            times = []
            for _ in range(300):
                start = time.monotonic()
                answer = await ask(port, "/health", limit=10)
                times.append(time.monotonic() - start)
                hold(answer.status == 200, f"/health: {answer.status}")
            over.append(await refused(port))
            hold(await waiting_is(port, 8), "the queue was not full to the end")
        finally:
            for writer in connections:
                writer.transport.abort()
            await end(tasks)
        freed = await until(lambda: idle(port), 1)
        hold(freed is not None, "slots are not free a second after all clients left")
    times.sort()
    p99 = 1e3 * times[int(0.99 * len(times))]
    hold(p99 < 200, f"/health takes {p99:.0f} ms")
    return f"500 idle connections, queue full: /health p50 {500 * (times[149] + times[150]):.1f} ms, p99 {p99:.1f} ms; over the bound 503, Retry-After {over}; free after {freed:.2f} s"


async def waiting_is(port, n):
    return await metric(port, "minfer_requests_waiting") == n


async def refused(port):
    answer = await ask(port, COMPLETIONS, completion("One more", 1), limit=10)
    after = answer.headers.get("retry-after", "")
    hold(answer.status == 503, f"a request over the bound got {answer.status}")
    hold(after.isdigit() and int(after) > 0, f"Retry-After is `{after}`")
    hold(answer.json()["error"]["message"], "the refusal has no message")
    return int(after)


# SIGTERM: running streams end well.

async def drain(options):
    with Server(options.minfer, options.model, "--parallel", "8", "-c", "2048", "--grace", "120") as server:
        port = server.port
        streams = [running(port, completion(words(20 + i, i), 200, seed=i)) for i in range(8)]

        async def all_run():
            return all(len(got.times) >= 3 for _, got in streams)

        hold(await until(all_run, 60) is not None, "not all streams began")
        hold(not any(got.done for _, got in streams), "a stream ended before the signal")
        server.process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        unready = await until(lambda: not_ready(port), 2)
        hold(unready is not None, "/ready still says yes after 2 s")
        await asyncio.gather(*[task for task, _ in streams])
        for i, (_, got) in enumerate(streams):
            hold(got.done and got.finish == "length" and not got.error, f"stream {i}: {got.finish}, {got.error}")
        status = await asyncio.to_thread(server.process.wait, 30)
        hold(status == 0, f"exit status {status}:\n{server.said()[-2000:]}")
    return f"8 streams ended with [DONE] {time.monotonic() - sent:.1f} s after the signal, not ready after {unready * 1e3:.0f} ms, exit status 0"


async def not_ready(port):
    try:
        return (await ask(port, "/ready", limit=5)).status == 503
    except OSError:
        return True


# Clients that are killed.

async def victim(port, phase, rng, counts):
    long = phase == "prefill"
    prompt = words(rng.randint(400, 900) if long else rng.randint(5, 30), rng.randint(0, 1 << 30))
    call = Call(port, COMPLETIONS, {**completion(prompt, 200, rng.randint(0, 1 << 30), 1.0), "stream": True})
    await call.send()
    seen = 0
    if phase == "decode":
        wanted = rng.randint(1, 20)
        async for _ in call.events((await call.head()).headers):
            seen += 1
            if seen == wanted:
                break
    else:
        await asyncio.sleep(rng.uniform(0, 0.3 if long else 0.02))
    call.cut()
    counts[phase] = counts.get(phase, 0) + 1


async def kills(options):
    bodies = [completion(words(30, 100 + i), 48, 7, float(i)) for i in range(2)]
    # A little queue beside two neighbours: most victims wait at first.
    with Server(options.minfer, options.model, "--parallel", "4", "--max-queue", "64", "-c", "2048") as server:
        port, counts, rounds = server.port, {}, [0, 0]
        alone = [(await stream(port, COMPLETIONS, body)).text for body in bodies]
        stopping = False

        async def neighbour(i):
            while not stopping:
                got = await stream(port, COMPLETIONS, bodies[i])
                hold(got.done and not got.error, f"neighbour {i} ended with {got.error}")
                hold(got.text == alone[i], f"neighbour {i} said `{got.text}` instead of `{alone[i]}`")
                rounds[i] += 1

        async def murders():
            nonlocal stopping
            rng, slowest = random.Random(5), 0.0
            for _ in range(20):
                phases = [rng.choice(["queue", "prefill", "decode"]) for _ in range(10)]
                await asyncio.gather(*[victim(port, phase, rng, counts) for phase in phases])
                free = await until(lambda: at_most(port, 2), 1)
                hold(free is not None, "slots are not free a second after their clients were killed")
                slowest = max(slowest, free)
            stopping = True
            return slowest

        tasks = [asyncio.create_task(t) for t in (murders(), neighbour(0), neighbour(1))]
        try:
            slowest, *_ = await asyncio.gather(*tasks)
        finally:
            await end(tasks)
        hold(await until(lambda: idle(port), 1) is not None, "something still runs")
        hold(min(rounds) > 0, "a neighbour never ended")
        hold(server.stop() == 0 and "panicked" not in server.said(), "a panic, or no exit status 0")
    kinds = ", ".join(f"{n} in {phase}" for phase, n in sorted(counts.items()))
    return f"{sum(counts.values())} kills ({kinds}): {sum(rounds)} answers of neighbours unchanged, free after {slowest:.2f} s at most"


async def at_most(port, n):
    return await load(port) <= n


# The same whatever else runs.

async def same(options):
    texts, second = {}, None
    for cache in (True, False):
        flags = [] if cache else ["--no-prefix-cache"]
        with Server(options.minfer, options.model, "--parallel", "12", "--max-queue", "64", "-c", "2048", *flags) as server:
            for temperature in (0.0, 1.0):
                seen = await texts_of(server.port, completion(words(90, 3), 48, 7, temperature))
                texts.setdefault(temperature, set()).update(seen)
            if cache:
                second = await second_turn(server.port)
            else:
                hits = await metric(server.port, "minfer_prefix_cache_hits_total")
                hold(hits == 0, f"{hits} tokens came from a cache that is off")
    for temperature, seen in texts.items():
        hold(len(seen) == 1, f"temperature {temperature}: {len(seen)} texts: {seen}")
    hold(texts[0.0] != texts[1.0], "temperature changes nothing: the check would see nothing")
    return f"17 answers each with cache and without, seed 7, temperature 0 and 1: one text each; second turn {second}"


async def texts_of(port, body):
    """Texts of a request alone, eight at once, and eight at once among others."""
    got = [await stream(port, COMPLETIONS, body)]
    got += await asyncio.gather(*[stream(port, COMPLETIONS, body) for _ in range(8)])
    noise = []
    for i in range(8):
        noise.append(running(port, completion(words(10 + 60 * i, i), 20 + 10 * i, i, 1.0))[0])
        await asyncio.sleep(0.01)
    try:
        got += await asyncio.gather(*[stream(port, COMPLETIONS, body) for _ in range(8)])
        others = await asyncio.gather(*noise)
    finally:
        await end(noise)
    for one in got + others:
        hold(one.done and not one.error, f"a stream ended with {one.error}")
    return {one.text for one in got}


async def second_turn(port):
    messages = [{"role": "user", "content": f"Say in a few words what this is about: {words(300, 9)}"}]
    options = {"max_tokens": 24, "temperature": 0, "seed": 7}
    first = (await ask(port, CHAT, {**options, "messages": messages})).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "And in one word?"}]
    messages[1] = {"role": "assistant", "content": messages[1]["content"]}
    second = (await ask(port, CHAT, {**options, "messages": messages})).json()
    prompt, cached = first["usage"]["prompt_tokens"], second["usage"]["prompt_tokens_details"]["cached_tokens"]
    hold(cached >= prompt - 64, f"{cached} tokens of {prompt} were cached")
    return f"{cached} cached tokens after a prompt of {prompt}"


# A long prompt beside running streams.

async def stall(options):
    with Server(options.minfer, options.model, "--parallel", "5", "-c", "4608") as server:
        port = server.port
        long = await exact(port, 4000)
        streams = [running(port, completion(words(10 + i, i), 4000, i)) for i in range(4)]

        async def all_run():
            return all(len(got.times) >= 5 for _, got in streams)

        hold(await until(all_run, 60) is not None, "not all streams began")
        start = time.monotonic()
        task, got = running(port, {**completion(long, 1), "stream_options": {"include_usage": True}})
        try:
            await task
            last = time.monotonic()
            hold(got.done and not got.error, f"the long prompt ended with {got.error}")
            read = got.usage["prompt_tokens"]
            hold(read >= 4000, f"the prompt had {read} tokens")
            gaps = [gap for _, one in streams for gap in gaps_between(one.times, start, last)]
            hold(not any(one.done for _, one in streams), "a stream ended while the prompt was read")
        finally:
            await end([task for task, _ in streams])
    hold(len(gaps) >= 40, f"only {len(gaps)} gaps were seen")
    hold(max(gaps) < 0.5, f"a stream waited {1e3 * max(gaps):.0f} ms")
    return f"{read} tokens read in {last - start:.1f} s beside 4 streams: {len(gaps)} gaps, {1e3 * max(gaps):.0f} ms at most"


def gaps_between(times, start, last):
    """Gaps between tokens that touch a span of time; one that has not ended yet counts as far as it got."""
    times = times + [last] if times[-1] < last else times
    return [b - a for a, b in zip(times, times[1:]) if b > start and a < last]


async def exact(port, tokens):
    """A text of at least so many tokens, and few more."""
    n = tokens
    while True:
        answer = await ask(port, "/tokenize", {"content": words(n, 77)})
        hold(answer.status == 200, f"/tokenize: {answer.status} {answer.body[:200]}")
        count = len(answer.json()["tokens"])
        if tokens <= count < tokens + 100:
            return words(n, 77)
        n = n * tokens // count + 8


CHECKS = {"same": same, "kills": kills, "drain": drain, "health": health, "stall": stall, "memory": memory}


def causes(error):
    """Errors of a group, one by one."""
    return [c for e in error.exceptions for c in causes(e)] if isinstance(error, BaseExceptionGroup) else [error]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("minfer")
    parser.add_argument("model")
    parser.add_argument("--tiny")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--only", default=",".join(CHECKS), help="names with commas: %(default)s")
    options = parser.parse_args()
    names, bad = options.only.split(","), 0
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        parser.error(f"no such check: {', '.join(unknown)}")
    for name in names:
        start = time.monotonic()
        try:
            result = f"ok    {name}: {asyncio.run(CHECKS[name](options))}"
        except (Exception, BaseExceptionGroup) as error:
            bad += 1
            told = "; ".join(str(e) if isinstance(e, Failed) else repr(e) for e in causes(error)[:3])
            result = f"FAIL  {name}: {told}"
        print(f"{result} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
