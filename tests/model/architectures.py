"""Tiny models with random weights of any architecture that the library can make from metadata alone.

    make("qwen35", path)

What an architecture needs to be told is a table here; the tensors follow from that, and the library names and shapes
them. The vocabulary is that of `tiny_models`. Not in the lists, since they write no text token by token: encoders (BERT
and its kin, T5), diffusion (Dream, LLaDA, RND1), speech (Qwen3-TTS, Pocket TTS, WavTokenizer), drafts (EAGLE-3, DFlash,
Gemma 4's assistant); since the library cannot compute them: Chameleon, CogVLM, PLM, GPT-J.
"""

from __future__ import annotations

import ctypes
import pathlib
import re
import tempfile

import gguf
import numpy as np
from tiny_models import Builder

CONTEXT, WINDOW = 4096, 32

# Kinds of memory, each with the architectures that generate text and can be made here.
HYBRID = (
    "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "granitehybrid",
    "jamba", "falcon-h1", "plamo2", "kimi-linear", "kimi-k3", "minimax-01", "bailingmoe3", "glm5-next",
)  # fmt: skip
RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
WINDOWS = (
    "gemma2", "gemma3", "gemma3n", "gemma4", "gpt-oss", "cohere2", "cohere2moe", "llama4", "olmo2", "mimo2", "laguna",
    "mellum", "smallthinker", "afmoe", "exaone-moe", "plamo3", "granite_swa", "spark2_5", "step35", "maple",
    "muse-glimmer", "dots3note", "phi3", "phimoe",
)  # fmt: skip
OWN = ("deepseek4",)
ATTENTION = (
    "llama", "deci", "falcon", "grok", "gpt2", "gptneox", "mpt", "baichuan", "starcoder", "refact", "bloom", "stablelm",
    "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2", "plamo", "codeshell",
    "orion", "internlm2", "minicpm", "minicpm3", "gemma", "starcoder2", "xverse", "command-r", "dbrx", "olmo", "olmoe",
    "openelm", "arctic", "deepseek", "deepseek2", "deepseek2-ocr", "deepseek32", "chatglm", "glm4", "glm4moe",
    "glm-dsa", "bitnet", "jais", "jais2", "nemotron", "exaone", "exaone4", "granite", "granitemoe", "graniteswitch",
    "bailingmoe", "bailingmoe2", "dots1", "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe",
    "hunyuan-dense", "hunyuan_vl", "hy_v3", "hy_v4", "smollm3", "seed_oss", "grovemoe", "apertus", "hrm_text",
    "minimax-m2", "minimax-m3", "pangu-embedded", "mistral3", "mistral4", "paddleocr", "maincoder", "talkie",
    "nanbeige",
)  # fmt: skip
ALL = (*HYBRID, *RECURRENT, *WINDOWS, *OWN, *ATTENTION)
CORE = (
    "qwen35", "qwen3next", "lfm2", "nemotron_h", "granitehybrid", "mamba", "mamba2", "rwkv7", "gemma3", "gpt-oss",
    "cohere2", "qwen3",
)  # fmt: skip
"""One or two of each kind, and those that people use."""

_LATENT = {
    "deepseek2", "deepseek32", "glm-dsa", "dots3note", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next", "mistral4",
    "hy_v4",
}  # fmt: skip
_STATE_IN_LAYER_1 = {
    "jamba", "nemotron_h", "nemotron_h_moe", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "bailingmoe3",
    "kimi-k3", "plamo2", "glm5-next",
}  # fmt: skip
_EXPERTS = {
    "qwen35moe", "qwen3next", "qwen4exp", "lfm2moe", "minimax-01", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next",
    "gpt-oss", "llama4", "mimo2", "laguna", "mellum", "smallthinker", "afmoe", "exaone-moe", "cohere2moe", "step35",
    "maple", "dots3note", "phimoe", "deepseek4", "grok", "qwen2moe", "qwen3moe", "qwen3vlmoe", "dbrx", "olmoe",
    "arctic", "deepseek", "deepseek2", "deepseek2-ocr", "deepseek32", "glm4moe", "glm-dsa", "minimax-m2", "minimax-m3",
    "hunyuan-moe", "ernie4_5-moe", "dots1", "ernie4_5", "granitemoe", "bailingmoe", "bailingmoe2", "hy_v3", "hy_v4",
    "grovemoe", "mistral4",
}  # fmt: skip
_LAYERS = {
    "llama4": 4,
    "deepseek4": 4,
    "nemotron_h": 3,
    "nemotron_h_moe": 3,
    "gemma3": 6,
    "gemma4": 5,
    "gemma3n": 22,
    "hrm_text": 6,
}
_EVERY = {"gemma3": 6, "gemma4": 5}  # layers, one of which sees everything
_PATTERN_BY_LAYER = {"cohere2moe", "mimo2", "spark2_5", "granite_swa", "step35", "maple", "muse-glimmer", "dots3note"}
_LEFT_OUT = {"rwkv6qwen2": "time_mix_first.weight"}  # what tells it from an rwkv6
_SIZES = {
    "deepseek4": (512, 8, 1024),
    "laguna": (160, 2, 384),
    "step35": (160, 2, 384),
    "qwen3": (256, 4, 384),
    "afmoe": (256, 4, 384),
    "muse-glimmer": (256, 4, 384),
    "gemma4": (128, 2, 192),
    "gemma3n": (64, 1, 96),
    **dict.fromkeys(_LATENT, (128, 1, 192)),
}


def sizes(arch: str) -> tuple[int, int, int]:
    """Width, heads, width of the feed-forward layers."""
    return _SIZES.get(arch, (256, 2, 384))


def facts(arch: str) -> dict[str, object]:
    """Of its metadata, without the name of the architecture in front. An int stands for 32 unsigned bits."""
    width, heads, inner = sizes(arch)
    layers, head = _LAYERS.get(arch, 2), width // heads
    by_layer = [0 if n == 1 else heads for n in range(layers)]
    alternating = [n % 2 for n in range(layers)]
    found: dict[str, object] = {
        "features_length": width, "leading_dense_block_count": 1,
        "feed_forward_length": [0 if n <= 1 else inner for n in range(layers)] if "nemotron_h" in arch else inner,
        "use_parallel_residual": False, "logit_scale": 1.0, "full_attention_interval": 2,
        "attention.head_count": by_layer if arch in _STATE_IN_LAYER_1 - {"glm5-next"} else heads,
        "attention.head_count_kv": by_layer if arch in _STATE_IN_LAYER_1 else 1 if arch == "deepseek4" else heads,
        "attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 1.0, "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.group_norm_epsilon": 1e-5,
        "attention.group_norm_groups": 8, "attention.q_lora_rank": 64 if arch == "deepseek4" else 512,
        "attention.kv_lora_rank": 512, "attention.relative_buckets_count": 8, "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": alternating if arch in _PATTERN_BY_LAYER else _EVERY.get(arch, 2),
        "attention.indexer.head_count": heads if arch == "minimax-m3" else 64,
        "attention.indexer.key_length": head if arch == "qwen4exp" else 128, "attention.indexer.top_k": 131072,
        "attention.indexer.block_size": 4, "attention.indexer.local_blocks": 1, "attention.indexer.kpool": 4,
        "attention.indexer.kpool_select_tail": True,
        "rope.dimension_sections": [8, 12, 12, 0] if arch == "bailingmoe3" else [head // 4] * 4,
        "residual_scale": 3.5, "attn_res.block_size": 12, "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0, "shortconv.l_cache": 3, "ssm.conv_kernel": 4, "ssm.state_size": 128,
        "ssm.inner_size": 256 if arch.startswith(("qwen3", "qwen4")) else 2 * width, "ssm.time_step_rank": heads,
        "ssm.group_count": 0 if arch == "plamo2" else 2, "kda.head_dim": 128, "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
    }  # fmt: skip
    if arch in _LATENT:
        found |= {
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "rope.dimension_count": 64,
        }
    if arch in _EXPERTS:
        found |= {
            "expert_feed_forward_length": inner,
            "expert_shared_feed_forward_length": inner // 2,
            "expert_latent_length": inner,
            "interleave_moe_layer_step": 2,
            "expert_count": 2,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_gating_func": 4 if arch == "deepseek4" else 2,
            "expert_group_scale": 1.0,
            "experts_per_group": 1,
        }
    if "rwkv" in arch:
        found |= {
            "attention.head_count": 4 if "qwen2" in arch or arch == "arwkv7" else 0,
            "attention.head_count_kv": 4 if "qwen2" in arch or arch == "arwkv7" else 0,
            "wkv.head_size": 64,
            "time_mix_extra_dim": 32,
            "time_decay_extra_dim": 64,
            "token_shift_count": 1 if arch in ("rwkv6qwen2", "arwkv7") else 2,
            "attention.decay_lora_rank": 32,
            "attention.iclr_lora_rank": 32,
            "attention.value_residual_mix_lora_rank": 16,
            "attention.gate_lora_rank": 32,
        }
    return found | _more(arch, width, heads, layers)


def _more(arch: str, width: int, heads: int, layers: int) -> dict[str, object]:
    """What one architecture alone is told."""
    head, alternating = width // heads, [n % 2 for n in range(layers)]
    mixing = {"hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6}
    scaled = {"swiglu_clamp_exp": 10.0, "expert_weights_scale": 1.0, "expert_weights_norm": True}
    every: dict[str, dict[str, object]] = {
        "bailingmoe3": {"swiglu_clamp_exp": [0.0, 4.0], "swiglu_clamp_shexp": [0.0, 5.0]},
        "deepseek4": {
            "attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head // 2,
            "attention.output_group_count": 8, "attention.output_lora_rank": 32,
            "attention.compress_ratios": [0, 0, 4, 128], "attention.compress_rope_freq_base": 160000.0,
            "hash_layer_count": 0, **mixing, **scaled,
        },
        "dots3note": {
            "attention.kv_lora_rank_swa": 512, "attention.key_length_swa": 576, "attention.value_length_swa": 512,
            "attention.key_length_mla_swa": 192, "attention.value_length_mla_swa": 128, "rope.freq_base_swa": 10000.0,
            "attention.indexer.types": [1 - n for n in alternating],
        },
        "gemma4": {
            "embedding_length_per_layer_input": width // 2, "attention.shared_kv_layers": 0,
            "attention.key_length_swa": head, "attention.value_length_swa": head, "rope.freq_base_swa": 10000.0,
            "attention.sliding_window_pattern": [1, 1, 1, 1, 0],
        },
        "glm5-next": {"attention.key_length": 512, "rope.dimension_count": 0, **mixing},
        "graniteswitch": {
            "adapters.count": 1, "adapters.lora_rank": 8, "adapters.token_ids_activate": [300],
            "adapters.token_ids_substitute": [301],
        },
        "hrm_text": {"hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2},
        "hy_v4": {
            "hyper_connection.magnitude": 2.0, "attention.indexer.types": [1 - n for n in alternating],
            **mixing, **scaled,
        },
        "maple": {"swiglu_clamp_exp": 7.0},
        "minimax-m3": {"rope.dimension_count": 64},
        "qwen4exp": {
            "hyper_connection.low_rank": 8, "attention.compress_ratios": [4] * layers, "ple.layers": [0],
            "ple.ngram_size": 3, "ple.heads_per_ngram": 2, "ple.conv_kernel": 4, "ple.eos_token_id": 0,
            "embedding_length_per_layer_input": width // 4, "ple.layer_multipliers": _long(1, 3, 5),
            "ple.head_offsets": _long(*(n * 370 for n in range(4))), "ple.head_vocab_sizes": _long(*[370] * 4),
            **mixing,
        },
    }  # fmt: skip
    return every.get(arch, {})


def make(arch: str, path: pathlib.Path, *, seed: int = 1, mtp: str = "", context: int = CONTEXT) -> pathlib.Path:
    """Write a tiny model of this architecture. Raises RuntimeError where the library does not make one.

    With `mtp` it has a layer that says what comes after the next token: one that "agrees", since each token says all
    about the next one, or one that "differs".
    """
    import llama_cpp.llama_cpp as C

    from llamasrv.engine.backend.library import reason

    with tempfile.TemporaryDirectory() as folder:
        metadata = pathlib.Path(folder) / "metadata.gguf"
        _write_metadata(arch, metadata, mtp=bool(mtp), context=context)
        base = _ggml()
        context = base.gguf_init_from_file(str(metadata).encode(), _InitParams(True, None))
    if not context:
        raise RuntimeError(f"{arch}: its metadata cannot be read")
    fill = _Filler(base, arch, seed, mtp)
    optional = _optional(_LAYERS.get(arch, 2)) if mtp else None
    callback = C.llama_model_set_tensor_data_t(fill)
    params = C.llama_model_default_params()
    params.n_gpu_layers, params.load_mtp = 0, bool(mtp)
    try:
        model = C.llama_model_init_from_user(ctypes.c_void_p(context), callback, None, params)
        if not model:
            raise RuntimeError(f"{arch}: {reason()}")
        for name, tensor in fill.tensors.items():
            if not name.endswith(_LEFT_OUT.get(arch, " ")) and not (optional and optional.match(name)):
                base.gguf_add_tensor(context, tensor)
        base.gguf_write_to_file(context, str(path).encode(), False)
        C.llama_model_free(model)
    finally:
        base.gguf_free(context)
    return path


def _optional(layer: int) -> re.Pattern[str]:
    """Tensors of the MTP layer that files do not have: it reads and writes words as the model does."""
    return re.compile(
        rf"blk\.{layer}\..*(\.(input_)?scale|(?<!exp_probs_b)\.bias|"
        r"\.(embed_tokens|shared_head_head|shared_head_norm)\.weight)$"
    )


def _write_metadata(arch: str, path: pathlib.Path, *, mtp: bool = False, context: int = CONTEXT) -> None:
    width, _, _ = sizes(arch)
    w = gguf.GGUFWriter(str(path), arch)
    w.add_name("tiny")  # the library knows some models by their names
    layers = _LAYERS.get(arch, 2)
    w.add_block_count(layers + mtp)
    if mtp:
        w.add_nextn_predict_layers(1)
    w.add_context_length(context)
    w.add_embedding_length(width)
    Builder.of(w).vocabulary()
    for name, value in facts(arch).items():
        if mtp and arch == "glm4moe" and "sections" in name:
            continue  # the library aborts on such positions in that layer
        if mtp and isinstance(value, list) and len(value) == layers:
            value = [*value, value[-1]]
        _add(w, f"{arch}.{name}", value)
    for name, value in {"alpha_n": 1.0, "alpha_p": 1.0, "beta": 1.0, "eps": 1e-7}.items():
        _add(w, f"xielu.{name}", value)  # apertus
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def _long(*numbers: int) -> list[np.uint64]:
    return [np.uint64(number) for number in numbers]


def _add(w: gguf.GGUFWriter, key: str, value: object) -> None:
    kinds = {
        bool: gguf.GGUFValueType.BOOL,
        int: gguf.GGUFValueType.UINT32,
        float: gguf.GGUFValueType.FLOAT32,
        np.uint64: gguf.GGUFValueType.UINT64,
    }
    if isinstance(value, list):
        w.add_key_value(key, value, gguf.GGUFValueType.ARRAY, kinds[type(value[0])])
    else:
        w.add_key_value(key, value, kinds[type(value)])


class _Filler:
    """Called with each tensor: gives it weights of a size that keeps activations within bounds."""

    def __init__(self, base: ctypes.CDLL, arch: str, seed: int, mtp: str) -> None:
        self._mtp = mtp
        self.tensors: dict[str, int] = {}
        self._arch = arch
        self._base = base
        self._random = np.random.default_rng(seed)

    def __call__(self, tensor: int, _: object) -> None:
        base = self._base
        name = base.ggml_get_name(tensor).decode()
        self.tensors[name] = tensor
        count, size = base.ggml_nelements(tensor), base.ggml_nbytes(tensor)
        kind = {4: np.float32, 2: np.float16}[size // count]
        data = self._values(name, count, base.ggml_nelements(tensor) // max(1, base.ggml_nrows(tensor)))
        raw = np.ascontiguousarray(data, kind)
        base.ggml_backend_tensor_set(tensor, raw.ctypes.data, 0, size)

    def _values(self, name: str, count: int, columns: int) -> np.ndarray:
        x = self._random.standard_normal(count, dtype=np.float32)
        if "nextn.eh_proj" in name:  # of a token and a state it hands on the token, and something of the state
            rows = np.eye(columns // 2, columns, dtype=np.float32)
            return rows.ravel() + x * np.float32((0.01 if self._mtp == "agrees" else 1) / np.sqrt(columns))
        if "nextn.enorm" in name:
            return np.ones_like(x)
        if self._mtp == "agrees" and re.search(r"(attn_output|ffn_down\w*|ssm_out)\.weight$", name):
            x *= np.float32(0.01)  # what a layer adds is little
        if "ssm_a" in name:
            return -np.abs(x)  # states decay
        if self._arch == "gemma4" and "attn_q_norm" in name:
            return (1 + x / 10) / np.float32(np.sqrt(columns))  # it scales its attention nowhere else
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
    base.gguf_add_tensor.argtypes = [pointer, pointer]
    base.gguf_write_to_file.argtypes = [pointer, ctypes.c_char_p, ctypes.c_bool]
    base.ggml_get_name.restype, base.ggml_get_name.argtypes = ctypes.c_char_p, [pointer]
    for name, kind in (("nelements", ctypes.c_int64), ("nbytes", ctypes.c_size_t), ("nrows", ctypes.c_int64)):
        function = getattr(base, f"ggml_{name}")
        function.restype, function.argtypes = kind, [pointer]
    base.ggml_backend_tensor_set.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t]
    return base
