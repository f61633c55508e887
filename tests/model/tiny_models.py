"""Tiny GGUFs with random weights and a byte vocabulary, one per kind of memory. Made in a moment, never stored.

llama    attention, one pool of cells
swa      attention with a sliding window in some layers (gemma3)
mamba    recurrent states only
hybrid   recurrent and attention layers (lfm2)
moe      attention, and experts in each layer (qwen3moe)
bert     attention to both sides, no memory: embeddings only
ranker   the same with a head that gives one score
mrope    attention with positions of several dimensions (qwen2vl); `seeing` models know the marks around images
deep     the same, and rows of images go into its first layers, too (qwen3vl)
"""

from __future__ import annotations

import pathlib

import gguf
import numpy as np

EMBD, FF, HEADS, KV_HEADS = 64, 96, 4, 2
HEAD = EMBD // HEADS
SPECIALS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Builder:
    def __init__(
        self, path: pathlib.Path, arch: str, *, layers: int, context: int, seed: int, marks: tuple[str, ...] = ()
    ) -> None:
        self.marks = marks  # further control tokens
        self.w = w = gguf.GGUFWriter(str(path), arch)
        self.arch = arch
        self.random = np.random.default_rng(seed)
        w.add_name(f"tiny-{arch}")
        w.add_block_count(layers)
        w.add_context_length(context)
        w.add_embedding_length(EMBD)
        w.add_feed_forward_length(FF)
        w.add_layer_norm_rms_eps(1e-6)
        self.vocabulary()

    @classmethod
    def of(cls, writer: gguf.GGUFWriter) -> Builder:
        """A builder on a writer that has been started elsewhere."""
        builder = cls.__new__(cls)
        builder.w, builder.marks = writer, ()
        return builder

    def vocabulary(self) -> None:
        w = self.w
        words = [" the", " and", "ing", "er", "th", " a", "in", " t"]
        tokens = [*SPECIALS, *(f"<0x{b:02X}>" for b in range(256))]
        types = [2, 3, 3, 3, 3] + [6] * 256
        letters = [chr(c) for c in range(33, 127)]
        tokens += ["▁", *letters, *(t.replace(" ", "▁") for t in words)]
        types += [1] * (len(tokens) - len(types))
        tokens += self.marks
        types += [3] * len(self.marks)
        self.n_vocab = len(tokens)
        w.add_vocab_size(self.n_vocab)
        w.add_tokenizer_model("llama")
        w.add_token_list(tokens)
        w.add_token_scores([0.0] * 5 + [-1000.0] * 256 + [-float(i) for i in range(self.n_vocab - 261)])
        w.add_token_types(types)
        w.add_bos_token_id(1)
        w.add_eos_token_id(4)
        w.add_eot_token_id(4)
        w.add_unk_token_id(0)
        w.add_add_bos_token(False)
        w.add_add_space_prefix(False)
        w.add_chat_template(CHATML)

    def matrix(self, name: str, rows: int, cols: int, scale: float = 1.0) -> None:
        x = self.random.standard_normal((rows, cols), dtype=np.float32) * np.float32(scale / np.sqrt(cols))
        self.w.add_tensor(name, x)

    def vector(self, name: str, *shape: int, value: float = 1.0) -> None:
        self.w.add_tensor(name, np.full(shape, value, np.float32))

    def attention(self, blk: str) -> None:
        self.matrix(f"{blk}.attn_q.weight", HEADS * HEAD, EMBD)
        self.matrix(f"{blk}.attn_k.weight", KV_HEADS * HEAD, EMBD)
        self.matrix(f"{blk}.attn_v.weight", KV_HEADS * HEAD, EMBD)
        self.matrix(f"{blk}.attn_output.weight", EMBD, HEADS * HEAD)

    def feed_forward(self, blk: str) -> None:
        self.vector(f"{blk}.ffn_norm.weight", EMBD)
        self.matrix(f"{blk}.ffn_gate.weight", FF, EMBD)
        self.matrix(f"{blk}.ffn_up.weight", FF, EMBD)
        self.matrix(f"{blk}.ffn_down.weight", EMBD, FF)

    def heads(self, kv: int | list[int] = KV_HEADS) -> None:
        self.w.add_head_count(HEADS)
        self.w.add_head_count_kv(kv)
        self.w.add_key_length(HEAD)
        self.w.add_value_length(HEAD)
        self.w.add_rope_dimension_count(HEAD)
        self.w.add_rope_freq_base(10000.0)

    def ends(self, norm: str = "output_norm.weight") -> None:
        self.matrix("token_embd.weight", self.n_vocab, EMBD, 2.0)
        self.vector(norm, EMBD)
        self.matrix("output.weight", self.n_vocab, EMBD, 2.0)

    def close(self) -> None:
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def llama(
    path: pathlib.Path,
    *,
    context: int = 2048,
    seed: int = 1,
    layers: int = 2,
    pooling: int | None = None,
    decides: str | None = None,
    marks: tuple[str, ...] = (),
) -> pathlib.Path:
    """`decides`: its type as a decision model."""
    b = Builder(path, "llama", layers=layers, context=context, seed=seed, marks=marks)
    b.heads()
    if decides is not None:
        b.w.add_string("llama.decision.type", decides)
    if pooling is not None:
        b.w.add_uint32("llama.pooling_type", pooling)
    b.ends()
    for i in range(layers):
        b.vector(f"blk.{i}.attn_norm.weight", EMBD)
        b.attention(f"blk.{i}")
        b.feed_forward(f"blk.{i}")
    b.close()
    return path


def swa(
    path: pathlib.Path, *, context: int = 2048, window: int = 32, seed: int = 1, marks: tuple[str, ...] = ()
) -> pathlib.Path:
    layers = 6  # every sixth layer sees everything, the others the window
    b = Builder(path, "gemma3", layers=layers, context=context, seed=seed, marks=marks)
    b.heads()
    b.w.add_sliding_window(window)
    b.ends()
    for i in range(layers):
        blk = f"blk.{i}"
        b.vector(f"{blk}.attn_norm.weight", EMBD)
        b.attention(blk)
        for name, size in (
            ("post_attention_norm", EMBD),
            ("attn_k_norm", HEAD),
            ("attn_q_norm", HEAD),
            ("post_ffw_norm", EMBD),
        ):
            b.vector(f"{blk}.{name}.weight", size)
        b.feed_forward(blk)
    b.close()
    return path


def mrope(
    path: pathlib.Path, *, context: int = 2048, marks: tuple[str, ...] = (), deep: bool = False, seed: int = 1
) -> pathlib.Path:
    layers, arch = 2, "qwen3vl" if deep else "qwen2vl"
    b = Builder(path, arch, layers=layers, context=context, seed=seed, marks=marks)
    b.heads()
    b.w.add_rope_dimension_sections([2, 3, 3, 0])  # together half of a head
    if deep:
        b.w.add_uint32("qwen3vl.n_deepstack_layers", 1)
    b.ends()
    for i in range(layers):
        blk = f"blk.{i}"
        b.vector(f"{blk}.attn_norm.weight", EMBD)
        b.attention(blk)
        if deep:
            b.vector(f"{blk}.attn_q_norm.weight", HEAD)
            b.vector(f"{blk}.attn_k_norm.weight", HEAD)
        else:
            for name, size in (("attn_q", HEADS * HEAD), ("attn_k", KV_HEADS * HEAD), ("attn_v", KV_HEADS * HEAD)):
                b.vector(f"{blk}.{name}.bias", size, value=0.0)
        b.feed_forward(blk)
    b.close()
    return path


def mamba(path: pathlib.Path, *, context: int = 2048, seed: int = 1) -> pathlib.Path:
    layers, inner, state, rank, conv = 2, 2 * EMBD, 8, 4, 4
    b = Builder(path, "mamba", layers=layers, context=context, seed=seed)
    b.w.add_ssm_conv_kernel(conv)
    b.w.add_ssm_inner_size(inner)
    b.w.add_ssm_state_size(state)
    b.w.add_ssm_time_step_rank(rank)
    b.ends()
    for i in range(layers):
        blk = f"blk.{i}"
        b.vector(f"{blk}.attn_norm.weight", EMBD)
        b.matrix(f"{blk}.ssm_in.weight", 2 * inner, EMBD)
        b.matrix(f"{blk}.ssm_conv1d.weight", inner, conv)
        b.vector(f"{blk}.ssm_conv1d.bias", inner, value=0.0)
        b.matrix(f"{blk}.ssm_x.weight", rank + 2 * state, inner)
        b.matrix(f"{blk}.ssm_dt.weight", inner, rank)
        b.vector(f"{blk}.ssm_dt.bias", inner, value=0.1)
        b.vector(f"{blk}.ssm_a", inner, state, value=-0.5)
        b.vector(f"{blk}.ssm_d", inner)
        b.matrix(f"{blk}.ssm_out.weight", EMBD, inner)
    b.close()
    return path


def hybrid(path: pathlib.Path, *, context: int = 2048, seed: int = 1) -> pathlib.Path:
    kinds = [0, KV_HEADS, 0, KV_HEADS]  # 0: convolution state, else attention
    b = Builder(path, "lfm2", layers=len(kinds), context=context, seed=seed)
    b.heads(kinds)
    b.w.add_shortconv_l_cache(3)
    b.ends("token_embd_norm.weight")
    for i, kv in enumerate(kinds):
        blk = f"blk.{i}"
        b.vector(f"{blk}.attn_norm.weight", EMBD)
        b.feed_forward(blk)
        if kv:
            b.vector(f"{blk}.attn_q_norm.weight", HEAD)
            b.vector(f"{blk}.attn_k_norm.weight", HEAD)
            b.attention(blk)
        else:
            b.matrix(f"{blk}.shortconv.conv.weight", EMBD, 3)
            b.matrix(f"{blk}.shortconv.in_proj.weight", 3 * EMBD, EMBD)
            b.matrix(f"{blk}.shortconv.out_proj.weight", EMBD, EMBD)
    b.close()
    return path


def moe(
    path: pathlib.Path, *, context: int = 2048, layers: int = 4, experts: int = 8, ff: int = FF, seed: int = 1
) -> pathlib.Path:
    b = Builder(path, "qwen3moe", layers=layers, context=context, seed=seed)
    b.heads()
    b.w.add_expert_count(experts)
    b.w.add_expert_used_count(2)
    b.w.add_expert_feed_forward_length(ff)
    b.ends()
    for i in range(layers):
        blk = f"blk.{i}"
        b.vector(f"{blk}.attn_norm.weight", EMBD)
        b.vector(f"{blk}.attn_q_norm.weight", HEAD)
        b.vector(f"{blk}.attn_k_norm.weight", HEAD)
        b.attention(blk)
        b.vector(f"{blk}.ffn_norm.weight", EMBD)
        b.matrix(f"{blk}.ffn_gate_inp.weight", experts, EMBD)
        for name, shape in (("gate", (ff, EMBD)), ("up", (ff, EMBD)), ("down", (EMBD, ff))):
            weights = b.random.standard_normal((experts, *shape), dtype=np.float32) / np.float32(np.sqrt(shape[1]))
            b.w.add_tensor(f"{blk}.ffn_{name}_exps.weight", weights)
    b.close()
    return path


def bert(
    path: pathlib.Path, *, context: int = 128, seed: int = 1, ranks: bool = False, says: bool = True
) -> pathlib.Path:
    layers = 2
    b = Builder(path, "bert", layers=layers, context=context, seed=seed)
    b.w.add_head_count(HEADS)
    b.w.add_layer_norm_eps(1e-12)
    if says:
        b.w.add_causal_attention(False)
    b.w.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.MEAN)
    b.w.add_token_type_count(2)

    def linear(name: str, rows: int, cols: int) -> None:
        b.matrix(f"{name}.weight", rows, cols)
        b.vector(f"{name}.bias", rows, value=0.1)

    def norm(name: str) -> None:
        b.vector(f"{name}.weight", EMBD)
        b.vector(f"{name}.bias", EMBD, value=0.0)

    b.matrix("token_embd.weight", b.n_vocab, EMBD, 2.0)
    b.matrix("token_types.weight", 2, EMBD)
    b.matrix("position_embd.weight", context, EMBD)
    norm("token_embd_norm")
    for i in range(layers):
        blk = f"blk.{i}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            linear(f"{blk}.{part}", EMBD, EMBD)
        norm(f"{blk}.attn_output_norm")
        linear(f"{blk}.ffn_up", FF, EMBD)
        linear(f"{blk}.ffn_down", EMBD, FF)
        norm(f"{blk}.layer_output_norm")
    if ranks:
        linear("cls", EMBD, EMBD)
        linear("cls.output", 1, EMBD)
        b.w.add_classifier_output_labels(["score"])
    b.close()
    return path


def ranker(path: pathlib.Path) -> pathlib.Path:
    return bert(path, ranks=True)


KINDS = {"llama": llama, "swa": swa, "mamba": mamba, "hybrid": hybrid, "moe": moe, "bert": bert, "ranker": ranker}


def lora(
    path: pathlib.Path, *, arch: str = "llama", layers: int = 2, rank: int = 4, size: float = 1.0, seed: int = 1
) -> pathlib.Path:
    """An adapter of the `llama` model's attention, large enough to change what it says; with a `size` of 1e30 so large
    that the result is not a number."""
    random = np.random.default_rng(seed)
    w = gguf.GGUFWriter(str(path), arch)
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", float(rank))
    for i in range(layers):
        for name, rows in (("attn_q", HEADS * HEAD), ("attn_v", KV_HEADS * HEAD), ("attn_output", EMBD)):
            a = random.standard_normal((rank, EMBD), dtype=np.float32) / np.float32(np.sqrt(EMBD))
            b = random.standard_normal((rows, rank), dtype=np.float32) * np.float32(size / np.sqrt(rank))
            w.add_tensor(f"blk.{i}.{name}.weight.lora_a", a)
            w.add_tensor(f"blk.{i}.{name}.weight.lora_b", b)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
