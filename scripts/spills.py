#!/usr/bin/env python3
"""Reads the tile loops of the matmul kernels in a program and fails if they keep sums on the stack.

    scripts/spills.py PROGRAM            an optimised x86-64 program or object file
    scripts/spills.py --without-pin      builds the CPU backend without its pin, which must fail, and exits with 0 if it does

A tile loop is an innermost loop with the products of 16 rows and 4 tokens over 32 columns, or of 8 tokens where one
register holds 16 rows: 64 products. Its 8 sums, the weights and a product fit the registers, so no vector may go to the
stack or come from there. Only where each half of the columns has a scale of its own, the 8 sums of the first half may wait there, once, for the second.
"""
import os
import re
import subprocess
import sys

PRODUCT = {"vpmaddubsw", "vpdpbusd"}
# What ends a sum of products; twice as many if by halves.
FINISH = {"vpmaddwd", "vpmulld"}
PRODUCTS, SUMS = 64, 8
# A program has the loops of every instruction set, whatever machine builds it: 81 with AVX2, AVX-VNNI and AVX-512. Many
# fewer mean that the kernels have changed and this script no longer finds them, or not those of one set.
LEAST_LOOPS = 60
STACK = re.compile(r"\(%rsp[,)]")
# Where the frame pointer is one; elsewhere that register points to data.
FRAME = re.compile(r"\(%r[sb]p[,)]")
VECTOR = re.compile(r"%[xyz]mm")


def functions(path):
    """Yields a list of (address, operation, operands) for each function."""
    command = ["objdump", "-d", "--no-show-raw-insn", "-M", "att", path]
    code = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as objdump:
        for line in objdump.stdout:
            if line.endswith(">:\n"):
                yield code
                code = []
            elif m := re.match(r"\s*([0-9a-f]+):\s+(?:\{vex\}\s+)?(\S+)\s*(.*)", line):
                code.append((int(m[1], 16), m[2], m[3]))
    yield code
    if objdump.returncode:
        sys.exit(f"objdump of {path} failed")


def count(code, names):
    return sum(operation in names for _, operation, _ in code)


def tile_loops(code):
    """The innermost loops of a function with enough products."""
    place = {address: i for i, (address, _, _) in enumerate(code)}
    loops = []
    for i, (_, operation, operands) in enumerate(code):
        target = re.match(r"[0-9a-f]+\b", operands) if operation.startswith("j") else None
        start = place.get(int(target[0], 16), i + 1) if target else i + 1
        if start <= i and count(code[start : i + 1], PRODUCT) >= PRODUCTS:
            loops.append((start, i + 1))
    inner = lambda a, b: a != b and a[0] <= b[0] and b[1] <= a[1]
    return [code[a:b] for a, b in loops if not any(inner((a, b), other) for other in loops)]


def check(path):
    """Prints what is wrong with the loops of a file; returns the number of loops and of wrong ones."""
    found, wrong, by_halves = 0, 0, 0
    for code in functions(path):
        if count(code, PRODUCT) < PRODUCTS:
            continue
        stack = FRAME if any(i[1:] == ("mov", "%rsp,%rbp") for i in code) else STACK
        for loop in tile_loops(code):
            touches = [i for i in loop if VECTOR.search(i[2]) and stack.search(i[2])]
            halves = count(loop, FINISH) >= 2 * SUMS
            found, by_halves = found + 1, by_halves + halves
            if len(touches) > (2 * SUMS if halves else 0):
                wrong += 1
                address = loop[0][0]
                print(f"the tile loop at {address:#x} moves vectors to and from the stack {len(touches)} times")
    print(f"{path}: {found} tile loops, {by_halves} of them by halves, {wrong} spill")
    return found, wrong


def without_pin():
    """Compiles the CPU backend without the pin; the object file's path."""
    target = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "spills")
    command = "cargo rustc --locked --release -p minfer-cpu --lib --target-dir".split() + [target]
    config = ["--config", "profile.release.lto=false", "--config", "profile.release.codegen-units=1"]
    subprocess.run(command + config + ["--", "--cfg", "minfer_no_pin", "--emit", "obj"], check=True)
    folder = os.path.join(target, "release", "deps")
    objects = [os.path.join(folder, f) for f in os.listdir(folder) if re.fullmatch(r"minfer_cpu-\w+\.o", f)]
    return max(objects, key=os.path.getmtime)


def main():
    if sys.argv[1:] == ["--without-pin"]:
        found, wrong = check(without_pin())
        return 0 if wrong else f"{found} tile loops without a pin, and none spills: the check sees nothing"
    if len(sys.argv) != 2:
        return __doc__
    found, wrong = check(sys.argv[1])
    if found < LEAST_LOOPS:
        return f"only {found} tile loops: has the kernel changed, or is this no optimised program?"
    return f"{wrong} tile loops spill" if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
