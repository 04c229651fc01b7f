#!/usr/bin/env python3
"""Whether `minfer plan` says how much memory a run takes: its peak against the one that the system saw.

    scripts/memory.py MINFER MODELS

MINFER is the program to test, MODELS a folder with files of scripts/test-models.sh; one that is missing is skipped,
loudly. Each setting plans, then runs a prompt that fills the context, and compares. Fails if a forecast is off by
more than a tenth. Linux only: the peak is what the kernel reports of a child that has ended.
"""

import json
import os
import subprocess
import sys
import tempfile

# Model, then options. Contexts, steps and types of the cache that make different things large.
SETTINGS = [
    ("smollm2-135m-q4_1", "-c 512"),
    ("smollm2-135m-q4_1", "-c 4096 -b 128 -ctk f32 -ctv f32"),
    ("smollm2-135m-q4_1", "-c 2048 -ctk q8_0 -ctv q8_0"),
    ("smollm2-135m-q4_1", "-c 4096"),
    ("gemma3-270m-q4_k_m", "-c 1024 -ctk q8_0 -ctv q8_0"),
    ("gemma3-270m-q4_k_m", "-c 4096 -ctk f32 -ctv f32"),
    ("qwen2.5-coder-0.5b-q4_k_m", "-c 2048 -b 64 -ctk q8_0"),
    ("qwen2.5-coder-0.5b-q4_k_m", "-c 512 --load mmap"),
    ("smollm2-135m-q4_1", "-c 1024 --load mmap"),
]
MOST = 0.10
# Room between the prompt and the end of the context.
ROOM = 16


def words(n):
    """A text of n words that a tokenizer cannot shorten by much, the same each time."""
    base = "the river under old stone bridges carries leaves and light toward a quiet harbour where ships wait".split()
    return " ".join(base[(i * i + 3 * i) % len(base)] for i in range(n))


def prompt(minfer, model, tokens):
    """The longest text of words that takes at most that many tokens."""
    def count(n):
        done = subprocess.run([minfer, "tokenize", model], input=words(n), capture_output=True, text=True, check=True)
        return len(done.stdout.split())

    few, many = 0, tokens
    while few < many:
        middle = (few + many + 1) // 2
        if count(middle) <= tokens:
            few = middle
        else:
            many = middle - 1
    return words(few)


def measured_peak(minfer, model, options, text):
    """The peak of a run, in bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [minfer, "run", model, "--raw", "-f", file.name, "--temp", "0", "--ignore-eos", *options]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        log = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(command)}\n{log}")
    return usage.ru_maxrss * 1024


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    minfer, folder = sys.argv[1:]
    failed = 0
    for name, line in SETTINGS:
        model, options = os.path.join(folder, name + ".gguf"), line.split()
        if not os.path.exists(model):
            print(f"SKIPPED: {model} is not there", file=sys.stderr)
            continue
        plan = subprocess.run([minfer, "plan", model, "--json", "--no-speed", *options], capture_output=True, check=True)
        plan = json.loads(plan.stdout)
        peak = measured_peak(minfer, model, options, prompt(minfer, model, plan["n_ctx"] - ROOM))
        off = plan["peak"] / peak - 1
        failed += abs(off) > MOST
        print(f"{name:<26} {line:<34} plan {plan['peak'] / 1e6:7.1f} MB  measured {peak / 1e6:7.1f} MB  {off:+.1%}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
