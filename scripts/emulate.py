#!/usr/bin/env python3
"""Runs a program of one thread for x86-64 Linux on an emulated processor that has AVX-512 with VNNI and AVX-VNNI.

    scripts/emulate.py PROGRAM [ARGUMENT...]

Meant for tests of instruction sets that the machine at hand lacks. The processor is Bochs's Sapphire Rapids, from the
PyPI package bochscpu-python, which is installed into a folder of the cache; what the program asks of the kernel is
done here, as far as test programs need it (no threads: libtest runs its tests one after the other then). Exit code:
the program's; 77: the emulator cannot be had (no network, no C compiler).
"""
import ctypes
import errno
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
import venv

PACKAGE = "bochscpu-python==0.4.0"
SKIPPED = 77
# The package's emulator always takes this older processor; the preloaded library hands it the newer one instead. The
# functions after it are those of a newer libc than some machines have.
PRELOADED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
void *_Z23create_corei3_cnl_cpuidP8BX_CPU_C(void *cpu) {
    void *(*create)(void *) = dlsym(RTLD_DEFAULT, "_Z28create_sapphire_rapids_cpuidP8BX_CPU_C");
    if (!create) { fputs("the emulator has no such processor\n", stderr); exit(96); }
    return create(cpu);
}
unsigned long long __isoc23_strtoull(const char *s, char **end, int base) { return strtoull(s, end, base); }
int __isoc23_sscanf(const char *s, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int n = vsscanf(s, format, list);
    va_end(list);
    return n;
}
"""
PAGE, GIB = 4096, 1 << 30
# Where things are in the program's memory, all of which is mapped as it is: half a terabyte by pages of a gigabyte.
TOP_TABLE, TABLE, TRAP = 0x10000, 0x11000, 0x12000
PROGRAM, LOADER, HEAP, BREAK, STACK = 0x40_0000_0000, 0x50_0000_0000, 0x10_0000_0000, 0x60_0000_0000, 0x70_0000_0000


def prepare():
    """Installs the emulator and starts this script again with it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(base, "minfer", "emulator-%d.%d" % sys.version_info[:2])
    python, library = os.path.join(folder, "bin", "python3"), os.path.join(folder, "preloaded.so")
    try:
        if not os.path.exists(library):
            venv.create(folder, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGE], check=True)
            with tempfile.NamedTemporaryFile("w", suffix=".c") as source:
                source.write(PRELOADED)
                source.flush()
                command = ["cc", "-shared", "-fPIC", "-O1", source.name, "-o", library, "-ldl"]
                subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"SKIPPED: no emulator ({e}); instruction sets that this processor lacks were NOT tested", file=sys.stderr)
        sys.exit(SKIPPED)
    os.execve(python, [python, *sys.argv], {**os.environ, "LD_PRELOAD": library})


class Memory:
    """The program's memory: pages of ours, handed to the emulator when either side first touches them."""

    def __init__(self, emulated):
        self.emulated, self.pages, self.free, self.kept = emulated, {}, [], []

    def page(self, address):
        ours = self.pages.get(address)
        if ours is None:
            if not self.free:
                self.kept.append(mmap.mmap(-1, 1 << 22))
                start = ctypes.addressof(ctypes.c_char.from_buffer(self.kept[-1]))
                self.free.extend(range(start, start + (1 << 22), PAGE))
            ours = self.pages[address] = self.free.pop()
            self.emulated.page_insert(address, ours)
        return ours

    def spans(self, address, size):
        while size:
            n = min(size, PAGE - address % PAGE)
            yield self.page(address - address % PAGE) + address % PAGE, n
            address, size = address + n, size - n

    def write(self, address, data):
        at = 0
        for ours, n in self.spans(address, len(data)):
            ctypes.memmove(ours, data[at : at + n], n)
            at += n

    def read(self, address, size):
        return b"".join(ctypes.string_at(ours, n) for ours, n in self.spans(address, size))

    def clear(self, address, size):
        for ours, n in self.spans(address, size):
            ctypes.memset(ours, 0, n)

    def text(self, address):
        out = b""
        while b"\0" not in out:
            out += self.read(address + len(out), PAGE - (address + len(out)) % PAGE)
        return out[: out.index(b"\0")]


class Kernel:
    """Answers the program's system calls."""

    def __init__(self, memory):
        self.memory, self.heap, self.end = memory, HEAP, BREAK
        self.exit_code, self.thread_pointer = None, None
        zero = lambda *_: 0
        self.calls = {
            0: self.read, 1: self.write, 3: lambda fd, *_: os.close(fd) or 0, 5: self.fstat, 7: zero,
            8: lambda fd, at, how, *_: os.lseek(fd, at, how), 9: self.mmap, 10: zero, 11: zero, 12: self.brk,
            13: lambda _n, _new, old, *_: self.zeros(old, 32), 14: zero, 17: self.pread, 20: self.writev, 24: zero,
            25: self.mremap, 28: zero, 39: lambda *_: 4242, 60: self.exit, 79: self.getcwd,
            131: lambda _new, old, *_: self.zeros(old, 24, struct.pack("<QI", 0, 2)), 157: zero,
            158: self.arch_prctl, 186: lambda *_: 4242, 202: zero, 204: self.affinity, 218: zero,
            228: lambda _clock, out, *_: self.put(out, struct.pack("<QQ", *divmod(time.monotonic_ns(), 10**9))),
            231: self.exit, 257: lambda _at, path, flags, *_: os.open(memory.text(path), flags & ~os.O_CREAT),
            262: self.newfstatat, 273: zero, 302: lambda _p, _r, _new, old, *_: self.put(old, struct.pack("<QQ", 8 << 20, 2**64 - 1)),
            318: lambda out, size, *_: self.put(out, os.urandom(size)) or size,
            # No thread can be had now; libtest does without then.
            56: lambda *_: -errno.EAGAIN,
        }  # fmt: skip

    def call(self, number, arguments):
        """The result of a call, as the kernel would return it."""
        handler = self.calls.get(number)
        if handler is None:
            return -errno.ENOSYS
        try:
            return handler(*arguments)
        except OSError as e:
            return -e.errno

    def put(self, address, data):
        if address:
            self.memory.write(address, data)
        return 0

    def zeros(self, address, size, start=b""):
        return self.put(address, start + bytes(size - len(start)))

    def exit(self, code, *_):
        self.exit_code = code & 255
        return 0

    def read(self, fd, out, size, *_):
        data = os.read(fd, size)
        return self.put(out, data) or len(data)

    def pread(self, fd, out, size, at, *_):
        data = os.pread(fd, size, at)
        return self.put(out, data) or len(data)

    def write(self, fd, data, size, *_):
        return os.write(fd, self.memory.read(data, size))

    def writev(self, fd, parts, count, *_):
        parts = struct.unpack(f"<{2 * count}Q", self.memory.read(parts, 16 * count))
        return os.write(fd, b"".join(self.memory.read(*p) for p in zip(parts[::2], parts[1::2])))

    def brk(self, end, *_):
        self.end = max(end, self.end)
        return self.end

    def mmap(self, address, size, _protection, flags, fd, at):
        size = -(-size // PAGE) * PAGE
        if not flags & mmap.MAP_ANONYMOUS and os.fstat(fd).st_size == 0:
            return -errno.EINVAL
        if not flags & 0x10:  # not at a fixed address
            address, self.heap = self.heap, self.heap + size + PAGE
        elif flags & mmap.MAP_ANONYMOUS:
            for page in range(address, address + size, PAGE):
                if page in self.memory.pages:
                    self.memory.clear(page, PAGE)
        if not flags & mmap.MAP_ANONYMOUS:
            self.memory.write(address, os.pread(fd, size, at).ljust(size, b"\0"))
        return address

    def mremap(self, old, old_size, size, *_):
        new = self.mmap(0, size, 0, mmap.MAP_ANONYMOUS, 0, 0)
        self.memory.write(new, self.memory.read(old, min(old_size, size)))
        return new

    def arch_prctl(self, what, value, *_):
        if what != 0x1002:  # set the thread pointer
            return -errno.EINVAL
        self.thread_pointer = value
        return 0

    def affinity(self, _pid, _size, out, *_):
        return self.put(out, struct.pack("<Q", 1)) or 8

    def getcwd(self, out, *_):
        path = os.getcwd().encode() + b"\0"
        return self.put(out, path) or len(path)

    def fstat(self, fd, out, *_):
        s = os.fstat(fd)
        head = (s.st_dev, s.st_ino, s.st_nlink, s.st_mode, s.st_uid, s.st_gid, 0, s.st_rdev, s.st_size, s.st_blksize)
        return self.put(out, struct.pack("<QQQIIIIQQQQ", *head, s.st_blocks) + bytes(72))

    def newfstatat(self, fd, path, out, *_):
        path = self.memory.text(path)
        if not path:
            return self.fstat(fd, out)
        file = os.open(path, os.O_RDONLY)
        try:
            return self.fstat(file, out)
        finally:
            os.close(file)


def load(memory, path, base):
    """Loads an ELF file: its entry, its program headers, their number, and its loader if it names one."""
    with open(path, "rb") as file:
        data = file.read()
    entry, headers = struct.unpack_from("<QQ", data, 24)
    (count,) = struct.unpack_from("<H", data, 56)
    loader = None
    for i in range(count):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, headers + 56 * i)
        if kind == 1:
            memory.write(base + address, data[offset : offset + size])
        elif kind == 3:
            loader = data[offset : offset + size - 1].decode()
    return base + entry, base + headers, count, loader


def stack(memory, arguments, auxiliary):
    """Lays out a new program's stack; the stack pointer."""
    top, pointers = STACK, []
    for text in [a.encode() for a in arguments] + [b"RUST_BACKTRACE=1"]:
        top -= len(text) + 1
        memory.write(top, text + b"\0")
        pointers.append(top)
    top -= 16
    auxiliary = {**auxiliary, 25: top, 31: pointers[0], 0: 0}  # 16 random bytes, the program's name, the end
    words = [len(arguments), *pointers[:-1], 0, pointers[-1], 0, *(w for pair in auxiliary.items() for w in pair)]
    top = (top - 8 * len(words)) & ~15
    memory.write(top, struct.pack(f"<{len(words)}Q", *words))
    return top


def segment(bochscpu, selector, attributes, base=0):
    s = bochscpu.Segment()
    s.present, s.limit, s.selector, s.attr, s.base = True, 0xFFFFFFFF, selector, attributes, base
    return s


def first_state(bochscpu, entry, top):
    """64-bit mode with all vector registers; everything runs with the kernel's rights, for there is no kernel."""
    state = bochscpu.State()
    bochscpu.cpu.set_long_mode(state)
    state.cr0 |= 2
    state.cr3, state.cr4 = TOP_TABLE, state.cr4 | 0x40600
    state.xcr0, state.mxcsr, state.mxcsr_mask, state.fpcw = 0xE7, 0x1F80, 0xFFFF, 0x37F
    state.cs, data = segment(bochscpu, 8, 0xA09B), segment(bochscpu, 16, 0xC093)
    state.ss = state.ds = state.es = state.fs = state.gs = data
    state.star, state.lstar, state.sfmask = 8 << 32 | 16 << 48, TRAP, 0
    state.rip, state.rsp, state.rflags = entry, top, 2
    return state


def emulate(arguments):
    """Runs a program; its exit code."""
    # The preloaded library looks for symbols of the emulator.
    sys.setdlopenflags(os.RTLD_GLOBAL | os.RTLD_NOW)
    import bochscpu
    import bochscpu.cpu
    import bochscpu.memory

    memory = Memory(bochscpu.memory)
    kernel = Kernel(memory)
    session = bochscpu.Session()
    session.missing_page_handler = lambda address: memory.page(address - address % PAGE)
    memory.write(TOP_TABLE, struct.pack("<Q", TABLE | 7))
    memory.write(TABLE, struct.pack("<512Q", *(i * GIB | 0x87 for i in range(512))))
    # A system call comes here: `wbinvd`, which has a hook and no effect, and back (`jmp rcx`).
    memory.write(TRAP, bytes([0x0F, 0x09, 0xFF, 0xE1]))
    entry, headers, count, loader = load(memory, arguments[0], PROGRAM)
    auxiliary = {3: headers, 4: 56, 5: count, 6: PAGE, 7: LOADER if loader else 0, 9: entry, 16: 0x178BFBFF, 23: 0}
    start = load(memory, loader, LOADER)[0] if loader else entry
    session.cpu.state = first_state(bochscpu, start, stack(memory, arguments, auxiliary))

    def system_call(session, *_):
        cpu = session.cpu
        result = kernel.call(cpu.rax & 0xFFFFFFFF, [cpu.rdi, cpu.rsi, cpu.rdx, cpu.r10, cpu.r8, cpu.r9])
        cpu.rax = result & 2**64 - 1
        if kernel.exit_code is not None or kernel.thread_pointer is not None:
            session.stop()

    def exception(session, _cpu, vector, _code):
        print(f"exception {vector} at {session.cpu.rip:#x}, address {session.cpu.cr2:#x}", file=sys.stderr)
        kernel.exit_code = 98
        session.stop()

    hook = bochscpu.Hook()
    hook.cache_cntrl, hook.exception = system_call, exception
    while kernel.exit_code is None:
        session.run([hook])
        if kernel.thread_pointer is not None:
            state = session.cpu.state
            state.fs = segment(bochscpu, 16, 0xC093, kernel.thread_pointer)
            session.cpu.state, kernel.thread_pointer = state, None
    return kernel.exit_code


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if "emulator-" not in os.environ.get("LD_PRELOAD", ""):
        prepare()
    code = emulate(sys.argv[1:])
    sys.stdout.flush()
    # Without the destructors of the emulator, which it does not survive.
    os._exit(code)
