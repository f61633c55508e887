"""Tiny models with random weights of any architecture that the library can make from metadata alone.

    make("qwen35", path)

What an architecture needs to be told is a table here; the tensors follow from that, and the library names and shapes
them. The vocabulary is that of `tiny_models`.
"""

from __future__ import annotations

import ctypes
import pathlib
import tempfile

import gguf
import numpy as np
from tiny_models import Builder

CONTEXT, WINDOW = 4096, 32

# Kinds of memory, each with the architectures that can be made here.
HYBRID = (
    "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "granitehybrid", "jamba",
    "falcon-h1", "kimi-linear", "minimax-01", "bailingmoe3", "kimi-k3",
)  # fmt: skip
RECURRENT = ("mamba", "mamba2")
WINDOWS = (
    "gemma2", "gemma3", "gpt-oss", "cohere2", "llama4", "olmo2", "mimo2", "laguna", "mellum", "smallthinker", "afmoe",
    "exaone-moe", "plamo3", "cohere2moe", "granite_swa", "spark2_5",
)  # fmt: skip
OWN = ("deepseek4",)
ATTENTION = (
    "llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "deepseek2", "glm4moe", "exaone4", "granite", "mistral3",
    "minimax-m2", "hunyuan-moe", "stablelm", "falcon", "starcoder2", "olmo", "ernie4_5", "seed_oss", "dots1", "arcee",
)  # fmt: skip
ALL = (*HYBRID, *RECURRENT, *WINDOWS, *OWN, *ATTENTION)
CORE = (
    "qwen35", "qwen3next", "lfm2", "nemotron_h", "granitehybrid", "mamba", "mamba2", "gemma3", "gpt-oss", "cohere2",
    "qwen3",
)  # fmt: skip
"""One or two of each kind, and those that people use."""

_LATENT = {"deepseek2", "kimi-linear", "bailingmoe3", "kimi-k3"}
_STATE_IN_LAYER_1 = {
    "jamba", "nemotron_h", "nemotron_h_moe", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "bailingmoe3",
    "kimi-k3",
}  # fmt: skip
_EXPERTS = {
    "qwen35moe", "qwen3next", "lfm2moe", "minimax-01", "kimi-linear", "bailingmoe3", "kimi-k3", "gpt-oss", "llama4",
    "mimo2", "laguna", "mellum", "smallthinker", "afmoe", "exaone-moe", "cohere2moe", "deepseek4", "qwen2moe",
    "qwen3moe", "deepseek2", "glm4moe", "minimax-m2", "hunyuan-moe", "ernie4_5-moe", "dots1", "ernie4_5",
}  # fmt: skip
_LAYERS = {"llama4": 4, "deepseek4": 4, "nemotron_h": 3, "nemotron_h_moe": 3, "gemma3": 6}
_EVERY = {"gemma3": 6}  # layers, one of which sees everything
_PATTERN_BY_LAYER = {"cohere2moe", "mimo2", "spark2_5", "granite_swa"}


def sizes(arch: str) -> tuple[int, int, int]:
    """Width, heads, width of the feed-forward layers."""
    if arch in _LATENT:
        return 128, 1, 192
    if arch == "deepseek4":
        return 512, 8, 1024
    if arch == "laguna":
        return 160, 2, 384
    return 256, 4 if arch in ("qwen3", "afmoe") else 2, 384


def facts(arch: str) -> dict[str, object]:
    """Of its metadata, without the name of the architecture in front. An int stands for 32 unsigned bits."""
    width, heads, inner = sizes(arch)
    layers, head = _LAYERS.get(arch, 2), width // heads
    by_layer = [0 if n == 1 else heads for n in range(layers)]
    found: dict[str, object] = {
        "features_length": width, "leading_dense_block_count": 1,
        "feed_forward_length": [0 if n <= 1 else inner for n in range(layers)] if "nemotron" in arch else inner,
        "use_parallel_residual": False, "logit_scale": 1.0, "full_attention_interval": 2,
        "attention.head_count": by_layer if arch in _STATE_IN_LAYER_1 else heads,
        "attention.head_count_kv": by_layer if arch in _STATE_IN_LAYER_1 else 1 if arch == "deepseek4" else heads,
        "attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 1.0, "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.group_norm_epsilon": 1e-5,
        "attention.group_norm_groups": 8, "attention.q_lora_rank": 64 if arch == "deepseek4" else 512,
        "attention.kv_lora_rank": 512, "attention.relative_buckets_count": 8, "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [n % 2 for n in range(layers)] if arch in _PATTERN_BY_LAYER else _EVERY.get(arch, 2),
        "attention.indexer.head_count": 64, "attention.indexer.key_length": 128, "attention.indexer.top_k": 131072,
        "rope.dimension_sections": [8, 12, 12, 0] if arch == "bailingmoe3" else [head // 4] * 4,
        "residual_scale": 3.5, "attn_res.block_size": 12, "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0, "shortconv.l_cache": 3, "ssm.conv_kernel": 4, "ssm.state_size": 128,
        "ssm.inner_size": 256 if arch.startswith("qwen3") else 2 * width, "ssm.time_step_rank": heads,
        "ssm.group_count": 2, "kda.head_dim": 128, "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
    }  # fmt: skip
    if arch in _LATENT:
        found |= {
            "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
            "attention.value_length_mla": 128, "rope.dimension_count": 64,
        }  # fmt: skip
    if arch == "bailingmoe3":
        found |= {"swiglu_clamp_exp": [0.0, 4.0], "swiglu_clamp_shexp": [0.0, 5.0]}
    if arch == "deepseek4":
        found |= {
            "attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head // 2,
            "attention.output_group_count": 8, "attention.output_lora_rank": 32,
            "attention.compress_ratios": [0, 0, 4, 128], "attention.compress_rope_freq_base": 160000.0,
            "hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6,
            "hash_layer_count": 0, "swiglu_clamp_exp": 10.0, "expert_weights_scale": 1.0, "expert_weights_norm": True,
        }  # fmt: skip
    if arch in _EXPERTS:
        found |= {
            "expert_feed_forward_length": inner, "expert_shared_feed_forward_length": inner // 2,
            "expert_latent_length": inner, "interleave_moe_layer_step": 2, "expert_count": 2, "expert_used_count": 2,
            "expert_shared_count": 1, "expert_gating_func": 4 if arch == "deepseek4" else 2, "expert_group_scale": 1.0,
            "experts_per_group": 1,
        }  # fmt: skip
    return found


def make(arch: str, path: pathlib.Path, *, seed: int = 1) -> pathlib.Path:
    """Write a tiny model of this architecture. Raises RuntimeError where the library does not make one."""
    import llama_cpp.llama_cpp as C

    from llamasrv.engine.backend.library import reason

    with tempfile.TemporaryDirectory() as folder:
        metadata = pathlib.Path(folder) / "metadata.gguf"
        _write_metadata(arch, metadata)
        base = _ggml()
        context = base.gguf_init_from_file(str(metadata).encode(), _InitParams(True, None))
    if not context:
        raise RuntimeError(f"{arch}: its metadata cannot be read")
    fill = _Filler(base, seed)
    callback = C.llama_model_set_tensor_data_t(fill)
    params = C.llama_model_default_params()
    params.n_gpu_layers = 0
    try:
        model = C.llama_model_init_from_user(ctypes.c_void_p(context), callback, None, params)
        if not model:
            raise RuntimeError(f"{arch}: {reason()}")
        C.llama_model_save_to_file(model, str(path).encode())
        C.llama_model_free(model)
    finally:
        base.gguf_free(context)
    return path


def _write_metadata(arch: str, path: pathlib.Path) -> None:
    width, _, _ = sizes(arch)
    w = gguf.GGUFWriter(str(path), arch)
    w.add_name(f"tiny-{arch}")
    w.add_block_count(_LAYERS.get(arch, 2))
    w.add_context_length(CONTEXT)
    w.add_embedding_length(width)
    Builder.of(w).vocabulary()
    for name, value in facts(arch).items():
        _add(w, f"{arch}.{name}", value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def _add(w: gguf.GGUFWriter, key: str, value: object) -> None:
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
    if isinstance(value, list):
        w.add_key_value(key, value, gguf.GGUFValueType.ARRAY, kinds[type(value[0])])
    else:
        w.add_key_value(key, value, kinds[type(value)])


class _Filler:
    """Called with each tensor: gives it weights of a size that keeps activations within bounds."""

    def __init__(self, base: ctypes.CDLL, seed: int) -> None:
        self._base = base
        self._random = np.random.default_rng(seed)

    def __call__(self, tensor: int, _: object) -> None:
        base = self._base
        name = base.ggml_get_name(tensor).decode()
        count, size = base.ggml_nelements(tensor), base.ggml_nbytes(tensor)
        kind = {4: np.float32, 2: np.float16}[size // count]
        data = self._values(name, count, base.ggml_nelements(tensor) // max(1, base.ggml_nrows(tensor)))
        raw = np.ascontiguousarray(data, kind)
        base.ggml_backend_tensor_set(tensor, raw.ctypes.data, 0, size)

    def _values(self, name: str, count: int, columns: int) -> np.ndarray:
        x = self._random.standard_normal(count, dtype=np.float32)
        if "ssm_a" in name:
            return -np.abs(x)  # states decay
        if "norm" in name and name.endswith(".weight"):
            return 1 + x / 10
        if columns == count or name.endswith(".bias"):
            return x / 10
        return x * np.float32((2 if name in ("token_embd.weight", "output.weight") else 1) / np.sqrt(columns))


class _InitParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def _ggml() -> ctypes.CDLL:
    import llama_cpp

    folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
    base = ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))
    pointer = ctypes.c_void_p
    base.gguf_init_from_file.restype, base.gguf_init_from_file.argtypes = pointer, [ctypes.c_char_p, _InitParams]
    base.gguf_free.argtypes = [pointer]
    base.ggml_get_name.restype, base.ggml_get_name.argtypes = ctypes.c_char_p, [pointer]
    for name, kind in (("nelements", ctypes.c_int64), ("nbytes", ctypes.c_size_t), ("nrows", ctypes.c_int64)):
        function = getattr(base, f"ggml_{name}")
        function.restype, function.argtypes = kind, [pointer]
    base.ggml_backend_tensor_set.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t]
    return base
