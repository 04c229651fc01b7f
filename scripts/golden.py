#!/usr/bin/env python3
"""Compares the minfer binary with recordings of llama.cpp. Standard library only; its scores are its own.

  scripts/golden.py MINFER GOLDEN MODELS

MINFER is the binary, GOLDEN the folder with the recordings (real, text, archs, tokenizers), MODELS the folder that
scripts/test-models.sh fills. Prints a line per comparison; exit code 1 if one fails, 3 if there was nothing to compare.
A recording X.exact is llama.cpp in f32 on dequantised weights: the truth. X.llamacpp is llama.cpp as it is: the bar.
"""
import json, math, pathlib, struct, subprocess, sys, tempfile

# Mean negative log-likelihood of the exact recordings, which hold only the best 128 ids of each position.
EXACT_NLL = {
    "smollm2-135m-q4_1": {"prose": 3.657, "code": 1.841, "multi": 3.208},
    "gemma3-270m-q4_k_m": {"prose": 3.410, "code": 1.686, "multi": 4.305},
    "qwen2.5-coder-0.5b-q4_k_m": {"prose": 4.083, "code": 1.079, "multi": 4.136},
}
ARCHS = ["llama", "llama3-rope", "qwen2", "qwen3", "qwen3moe", "gemma3"]
VOCABULARIES = ["gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3"]
# Every way of cutting and threading a run must give the same bits.
CUTS = [("1", "1"), ("2", "1"), ("1", "7"), ("2", "7"), ("1", "64"), ("2", "64"), ("1", "512"), ("2", "512")]
HASHED_TOKENS = "160"
# Blocks on other devices: a tied model without biases and an untied one with, and few tokens, for the lane's time.
PLACED = ["smollm2-135m-q4_1", "qwen2.5-coder-0.5b-q4_k_m"]
PLACED_TOKENS = "64"


class Safetensors:
    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        self.header, self.body = json.loads(data[8 : 8 + size]), data[8 + size :]

    def __getitem__(self, name):
        entry = self.header[name]
        start, end = entry["data_offsets"]
        letter = {"I32": "i", "F32": "f"}[entry["dtype"]]
        return struct.unpack(f"<{(end - start) // 4}{letter}", self.body[start:end])

    def rows(self):
        """A list of {id: log-probability}, best first, for each position."""
        n, k = self.header["top_ids"]["shape"]
        ids, values = self["top_ids"], self["top_logprobs"]
        return [dict(zip(ids[i * k : i * k + k], values[i * k : i * k + k])) for i in range(n)]


def kl(reference, other):
    """KL(reference || other) over the reference's ids and one bucket for all others."""
    least = min(other.values())
    total, rest_p, rest_q = 0.0, 1.0, 1.0
    for token, p in reference.items():
        q = other.get(token, least)
        total += math.exp(p) * (p - q)
        rest_p, rest_q = rest_p - math.exp(p), rest_q - math.exp(q)
    rest_p, rest_q = max(rest_p, 1e-12), max(rest_q, 1e-12)
    return total + rest_p * math.log(rest_p / rest_q)


def mean_kl(reference, other):
    assert len(reference) == len(other), f"{len(other)} positions in place of {len(reference)}"
    return sum(map(kl, reference, other)) / len(reference)


def centred_error(reference, other):
    """Squared error over squared size, after each row's mean is taken off."""
    error = size = 0.0
    for a, b in zip(reference, other, strict=True):
        mean_a, mean_b = sum(a.values()) / len(a), sum(b.values()) / len(b)
        for token, value in a.items():
            error += (value - mean_a - (b[token] - mean_b)) ** 2
            size += (value - mean_a) ** 2
    return error / size


class Run:
    def __init__(self, minfer, golden, models):
        self.minfer, self.golden, self.models = minfer, pathlib.Path(golden), pathlib.Path(models)
        self.done = self.failed = 0
        self.scratch = pathlib.Path(tempfile.mkdtemp())

    def call(self, *args):
        return subprocess.run([self.minfer, *map(str, args)], check=True, stdout=subprocess.PIPE, text=True).stdout

    def report(self, what, good, figures):
        self.done, self.failed = self.done + 1, self.failed + (not good)
        print(f"{'ok    ' if good else 'FAILED'} {what}: {figures}", flush=True)

    def evaluate(self, model, reference, *options):
        """The scores that minfer prints and the recording that it writes."""
        out = self.scratch / "out.safetensors"
        common = ["--reference", reference, "--cache-type-k", "f32", "--cache-type-v", "f32", "--json", "--out", out]
        return json.loads(self.call("eval", model, *common, *options)), Safetensors(out)

    def text(self, model, name, nll):
        stem = self.golden / "real" / f"{model.stem}.{name}"
        exact, bar = Safetensors(f"{stem}.exact.safetensors"), Safetensors(f"{stem}.llamacpp.safetensors")
        ids = tuple(map(int, self.call("tokenize", model, "-f", self.golden / "text" / f"{name}.txt").split()))
        self.report(f"{model.stem} {name} tokens", ids == exact["tokens"], f"{len(ids)} ids")
        scores, written = self.evaluate(model, f"{stem}.exact.safetensors")
        ours, theirs = mean_kl(exact.rows(), written.rows()), mean_kl(exact.rows(), bar.rows())
        self.report(f"{model.stem} {name} KL", ours <= theirs, f"{ours:.5f}, llama.cpp {theirs:.5f}")
        same = abs(ours - scores["kl_mean"]) <= 1e-6 and scores["n"] == len(exact["tokens"])
        self.report(f"{model.stem} {name} own score", same, f"{scores['kl_mean']:.7f} against {ours:.7f}")
        mean = scores["mean_nll"]
        self.report(f"{model.stem} {name} NLL", abs(mean - nll) <= 0.02, f"{mean:.3f}, exact {nll}")

    def same_bits(self, model):
        ids = self.golden / "real" / f"{model.stem}.code.exact.safetensors"
        common = ["eval", model, "--reference", ids, "--limit", HASHED_TOKENS, "--logits-hash", "--json"]
        hashes = {json.loads(self.call(*common, "-t", t, "-b", b))["logits_sha256"] for t, b in CUTS}
        self.report(f"{model.stem} same bits", len(hashes) == 1, f"{len(hashes)} hash(es) of {len(CUTS)} runs")

    def placement(self, model):
        """Blocks on one and two devices for tests: the logits of the CPU alone, and the splits and copies of arithmetic."""
        graph = ["graph", model, "--format", "json"]
        n = max(node["block"] or 0 for node in json.loads(self.call(*graph))["nodes"])
        ids = self.golden / "real" / f"{model.stem}.code.exact.safetensors"
        evaluate = ["eval", model, "--reference", ids, "--limit", PLACED_TOKENS, "--logits-hash", "--json"]
        hashes = {json.loads(self.call(*evaluate))["logits_sha256"]}
        for devices in ["chaos:0"], ["chaos:0", "chaos:1"]:
            for layers in sorted({0, 1, n // 2, n} if len(devices) == 1 else {n // 2, n}):
                options = ["--device", ",".join(devices), "--gpu-layers", layers]
                hashes.add(json.loads(self.call(*evaluate, *options))["logits_sha256"])
                # The stream of hidden states crosses to each device, and back to the head of a CPU that has blocks;
                # positions, extents, cache rows and page table are copied to all devices with blocks but the first.
                crossings = 0 if layers == 0 else len(devices) + (layers < n)
                with_blocks = (layers < n) + (len(devices) if layers else 0)
                want = (crossings + 1, crossings + 4 * (with_blocks - 1))
                totals = json.loads(self.call(*graph, *options))["totals"]
                found = (totals["splits"], totals["copies"])
                what = f"{model.stem} {layers} of {n} blocks on {' and '.join(devices)}"
                per_token = f"{totals['bytes_per_token']} bytes for a token"
                self.report(what, found == want, f"{found[0]} splits, {found[1]} copies, {per_token}")
        self.report(f"{model.stem} placed bits", len(hashes) == 1, f"{len(hashes)} hash(es): {min(hashes)[:16]}")

    def arch(self, name):
        recording = self.golden / "archs" / f"{name}.safetensors"
        _, written = self.evaluate(self.golden / "archs" / f"{name}.gguf", recording, "--top", "256")
        error = centred_error(Safetensors(recording).rows(), written.rows())
        self.report(f"arch {name}", error <= 1e-7, f"{error:.1e}")

    def vocabulary(self, name):
        file = self.golden / "tokenizers" / f"ggml-vocab-{name}.gguf"
        texts = pathlib.Path(f"{file}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
        lines = pathlib.Path(f"{file}.out").read_text().splitlines()
        wrong = 0
        for text, line in zip(texts, lines, strict=False):
            path = self.scratch / "text"
            path.write_bytes(text.encode())
            wrong += self.call("tokenize", file, "--no-bos", "-f", path).split() != line.split()
        complete = len(lines) in (len(texts), len(texts) - 1)
        self.report(f"vocabulary {name}", wrong == 0 and complete, f"{wrong} of {len(lines)} texts differ")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    run = Run(*sys.argv[1:])
    for name in VOCABULARIES:
        run.vocabulary(name)
    for name in ARCHS:
        run.arch(name)
    for stem, texts in EXACT_NLL.items():
        model = run.models / f"{stem}.gguf"
        if not model.exists():
            print(f"SKIPPED {stem}: not in {run.models}")
            continue
        for name, nll in texts.items():
            run.text(model, name, nll)
        run.same_bits(model)
        if stem in PLACED:
            run.placement(model)
    print(f"{run.done} comparisons, {run.failed} failed")
    sys.exit(3 if run.done == 0 else run.failed > 0)


if __name__ == "__main__":
    main()
