"""Speech pairs with random weights: a text model, and the projector that gives it a voice.

qwen3tts     a sampled code and 15 more a frame; ends after about one frame for each row of its prompt
pockettts    32 numbers a frame; ends at random
"""

from __future__ import annotations

import pathlib

import gguf
import numpy as np

EMBD, LAYERS, HEADS, FF = 64, 2, 4, 128
CODES = 3072  # asserted in the library: rows of output.weight
SPECIAL_CODES = {
    "codec_pad": 2148, "codec_bos": 2149, "codec_eos_token": 2150, "codec_think": 2154, "codec_nothink": 2155,
    "codec_think_bos": 2156, "codec_think_eos": 2157, "codec_language_english": 2050, "codec_language_german": 2053,
    "spk_vivian": 3000, "spk_ryan": 3001,
}  # fmt: skip
RATES, RATIOS = (8, 5, 4, 3), (4, 5, 6)  # samples of a frame: 2 * 2 * 480, and 16 * 120
KINDS = ("qwen3tts", "pockettts")


class _Writer:
    def __init__(self, path: pathlib.Path, architecture: str) -> None:
        self.w = gguf.GGUFWriter(str(path), architecture)
        self.w.add_name(path.stem)
        self.w.add_file_type(gguf.LlamaFileType.ALL_F32)
        self.random = np.random.default_rng(sum(path.name.encode()))

    def rand(self, name: str, *shape: int, scale: float = 1.0, kind: type = np.float32, edit=None) -> None:
        inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        x = self.random.standard_normal(shape, dtype=np.float32) * np.float32(scale / inputs**0.5)
        if edit is not None:
            edit(x)
        self.w.add_tensor(name, x.astype(kind))

    def full(self, name: str, *shape: int, value: float = 0.0) -> None:
        self.w.add_tensor(name, np.full(shape, value, np.float32))

    def linear(self, name: str, out: int, size: int, *, bias: bool = False, scale: float = 1.0, edit=None) -> None:
        self.rand(f"{name}.weight", out, size, scale=scale, edit=edit)
        if bias:
            self.full(f"{name}.bias", out)

    def conv(self, name: str, out: int, size: int, width: int, *, scale=1.0, bias=True, kind=np.float16, edit=None):
        self.rand(f"{name}.weight", out, size, width, scale=scale, kind=kind, edit=edit)
        if bias:
            self.full(f"{name}.bias", out)

    def up(self, name: str, size: int, out: int, width: int, *, kind: type = np.float32) -> None:
        self.rand(f"{name}.weight", size, out, width, scale=(out * width) ** 0.5 / size**0.5 / 2**0.5, kind=kind)
        self.full(f"{name}.bias", out)

    def norm(self, name: str, size: int, *, bias: bool = False) -> None:
        self.full(f"{name}.weight", size, value=1.0)
        if bias:
            self.full(f"{name}.bias", size)

    def keys(self, prefix: str, **values: float | str | bool) -> None:
        for key, value in values.items():
            name = f"{prefix}.{key.replace('__', '.')}"
            if isinstance(value, bool):
                self.w.add_bool(name, value)
            elif isinstance(value, str):
                self.w.add_string(name, value)
            elif isinstance(value, float):
                self.w.add_float32(name, value)
            else:
                self.w.add_uint32(name, value)

    def vocabulary(self, model: str, pieces: list[str], types: list[int], scores: list[float], **flags: bool) -> None:
        self.w.add_tokenizer_model(model)
        self.w.add_tokenizer_pre("default")
        self.w.add_token_list(pieces)
        self.w.add_token_types(types)
        self.w.add_token_scores(scores)
        self.w.add_vocab_size(len(pieces))
        self.keys("tokenizer.ggml", add_bos_token=False, add_eos_token=False, **flags)

    def finish(self) -> None:
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def model(path: pathlib.Path, kind: str) -> pathlib.Path:
    """The text model of a pair."""
    (_qwen_model if kind == "qwen3tts" else _pocket_model)(_Writer(path, kind))
    return path


def projector(path: pathlib.Path, kind: str) -> pathlib.Path:
    w = _Writer(path, "clip")
    w.w.add_type("mmproj")
    w.keys("clip", has_audio_encoder=True, has_gen_audio_encoder=True)
    w.keys("clip.audio", projector_type=f"{kind}_spkenc", projection_dim=EMBD)
    w.keys("clip.gen.audio", projector_type=f"{kind}_gen", projection_dim=EMBD)
    (_qwen_projector if kind == "qwen3tts" else _pocket_projector)(w)
    return path


def _zero(*rows: int):
    def edit(x: np.ndarray) -> None:
        x[list(rows)] = 0

    return edit


def _layers(w: _Writer, kind: str, *, kv: int) -> None:
    """With `kv` 2 (qwen3tts), head 0 of layer 0 looks at all rows alike and writes the mean of channel 0 into channel
    1, where nothing else writes: a clock that ends the speech."""
    qwen, head = kind == "qwen3tts", EMBD // HEADS

    def mean(x: np.ndarray) -> None:
        x[[0, 1]] = 0
        x[1, 0] = 1

    def first(x: np.ndarray) -> None:
        x[0] = 0
        x[0, 0] = 1

    w.keys(
        kind,
        block_count=LAYERS,
        context_length=4096,
        embedding_length=EMBD,
        feed_forward_length=FF,
        attention__head_count=HEADS,
        attention__head_count_kv=kv,
        attention__key_length=head,
        attention__value_length=head,
        rope__dimension_count=head,
    )
    for i in range(LAYERS):
        b, ticks = f"blk.{i}", qwen and i == 0
        w.norm(f"{b}.attn_norm", EMBD, bias=not qwen)
        w.norm(f"{b}.ffn_norm", EMBD, bias=not qwen)
        w.linear(f"{b}.attn_q", EMBD, EMBD, scale=1.5, edit=_zero(*range(head)) if ticks else None)
        w.linear(f"{b}.attn_k", kv * head, EMBD, scale=1.5)
        w.linear(f"{b}.attn_v", kv * head, EMBD, edit=first if ticks else None)
        w.linear(f"{b}.attn_output", EMBD, EMBD, edit=mean if ticks else _zero(0, 1) if qwen else None)
        if qwen:
            w.norm(f"{b}.attn_q_norm", head)
            w.norm(f"{b}.attn_k_norm", head)
            w.linear(f"{b}.ffn_gate", FF, EMBD)
        w.linear(f"{b}.ffn_up", FF, EMBD)
        w.linear(f"{b}.ffn_down", EMBD, FF, edit=_zero(0, 1) if qwen else None)


def _qwen_model(w: _Writer) -> None:
    _layers(w, "qwen3tts", kv=2)
    w.w.add_rope_dimension_sections([4, 2, 2, 0])
    w.w.add_rope_freq_base(1e6)
    w.w.add_layer_norm_rms_eps(1e-6)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *map(chr, range(33, 127))]
    types = [2, 3, 3] + [6] * 256 + [1] * 95 + [4] + [3] * (6 + CODES)
    pieces += [
        "assistant",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<tts_pad>",
        "<tts_text_bos>",
        "<tts_text_eod>",
    ]
    start, codes = len(pieces), [f"<|codec_{i}|>" for i in range(CODES)]
    for name, i in SPECIAL_CODES.items():
        codes[i] = f"<|{name}|>"
    scores = [-float(i) for i in range(start)] + [0.0] * CODES
    w.vocabulary("llama", pieces + codes, types, scores, add_space_prefix=False)
    w.w.add_unk_token_id(0)
    end = start + SPECIAL_CODES["codec_eos_token"]
    w.w.add_array("tokenizer.ggml.suppress_tokens", [i for i in range(start + 2048, start + CODES) if i != end])
    w.w.add_eos_token_id(end)

    def prompt(x: np.ndarray) -> None:  # a row of the prompt is the sum of two of these: -1
        x[:, 0], x[:, 1] = -0.5, 0

    def ends(x: np.ndarray) -> None:  # once there is a frame for each row of the prompt
        x[SPECIAL_CODES["codec_eos_token"]] = 0
        x[SPECIAL_CODES["codec_eos_token"], 1] = 60

    w.linear("token_embd", start + CODES, EMBD, scale=EMBD**0.5 * 0.3, edit=prompt)
    w.linear("output", CODES, EMBD, edit=ends)
    w.norm("output_norm", EMBD)
    w.finish()


def _qwen_projector(w: _Writer) -> None:
    small, layers, heads, kv, head, ff, codes = 48, 2, 4, 2, 12, 96, 64
    book, hidden, latent, width, voice_head, inner, dac = 16, 32, 32, 32, 4, 48, 16
    channels, wide, attention = 16, 48, 8
    w.keys(
        "clip.audio",
        num_mel_bins=128,
        block_count=3,
        embedding_length=wide,
        attention__head_count=1,
        feed_forward_length=wide,
        attention__layer_norm_epsilon=1e-5,
    )
    whole = {"kind": np.float32}
    w.conv("a.conv1d.0", channels, 128, 5, **whole)
    for i in (1, 2, 3):
        for part in ("conv_pw1", "conv_pw2"):
            w.conv(f"a.blk.{i}.{part}", channels, channels, 1, **whole)
        for x in range(7):
            w.conv(f"a.blk.{i}.res2.{x}", channels // 8, channels // 8, 3, **whole)
        w.conv(f"a.blk.{i}.se_conv1", attention, channels, 1, **whole)
        w.conv(f"a.blk.{i}.se_conv2", channels, attention, 1, **whole)
    w.conv("a.conv_out", wide, 3 * channels, 1, **whole)
    w.conv("a.asp_tdnn", attention, 3 * wide, 1, **whole)
    w.conv("a.asp_attn", wide, attention, 1, **whole)
    w.conv("mm.a.fc", EMBD, 2 * wide, 1, **whole, edit=_zero(0, 1))

    w.keys(
        "clip.gen.audio",
        embedding_length=small,
        feed_forward_length=ff,
        block_count=layers,
        attention__head_count=heads,
        attention__head_count_kv=kv,
        attention__layer_norm_epsilon=1e-6,
    )

    def silent(x: np.ndarray) -> None:
        x[..., :2] = 0

    def frame(x: np.ndarray) -> None:  # with half of the padding's row: 1
        x[:, 0], x[:, 1] = 1.5, 0

    w.linear("a.gen.code.proj_in", small, EMBD, bias=True)
    w.rand("a.gen.code.embd.weight", 15, codes, EMBD, scale=(codes * EMBD) ** 0.5 * 0.1, edit=silent)
    w.rand("a.gen.code.head.weight", 15, codes, small, scale=codes**0.5)
    w.rand("a.gen.code.out_embd.weight", CODES, EMBD, scale=EMBD**0.5 * 0.3, edit=frame)
    w.norm("a.gen.code.output_norm", small)
    for i in range(layers):
        b = f"a.gen.code.blk.{i}"
        for name, size in (("ln1", small), ("ln2", small), ("attn_q_norm", head), ("attn_k_norm", head)):
            w.norm(f"{b}.{name}", size)
        for part, rows in (("q", heads * head), ("k", kv * head), ("v", kv * head)):
            w.linear(f"{b}.attn_{part}", rows, small)
        w.linear(f"{b}.attn_out", small, heads * head)
        w.linear(f"{b}.ffn_gate", ff, small)
        w.linear(f"{b}.ffn_up", ff, small)
        w.linear(f"{b}.ffn_down", small, ff)
    g = "a.gen.wav"
    for part, books in (("first", (2048, book)), ("rest", (15, codes, book))):
        w.linear(f"{g}.quant.{part}.in_proj", book, hidden)
        w.linear(f"{g}.quant.{part}.out_proj", hidden, book)
        w.rand(f"{g}.quant.{part}.codebook.weight", *books, scale=float(np.prod(books[1:])) ** 0.5)
    w.conv(f"{g}.pre_conv", latent, hidden, 3)
    w.linear(f"{g}.tfm.in_proj", width, latent, bias=True)
    w.linear(f"{g}.tfm.out_proj", latent, width, bias=True)
    w.norm(f"{g}.tfm.output_norm", width)
    for i in range(8):
        b = f"{g}.tfm.blk.{i}"
        for part in ("q", "k", "v"):
            w.linear(f"{b}.attn_{part}", 16 * voice_head, width)
        w.linear(f"{b}.attn_out", width, 16 * voice_head)
        for number in (1, 2):
            w.norm(f"{b}.ln{number}", width)
            w.full(f"{b}.ls{number}.weight", width, value=0.3)
        w.linear(f"{b}.ffn_gate", inner, width)
        w.linear(f"{b}.ffn_up", inner, width)
        w.linear(f"{b}.ffn_down", width, inner)
    for i in range(2):
        b = f"{g}.up.blk.{i}"
        w.up(f"{b}.conv", latent, latent, 2)
        w.conv(f"{b}.dwconv", latent, 1, 7)
        w.norm(f"{b}.norm", latent, bias=True)
        w.linear(f"{b}.pw1", 4 * latent, latent, bias=True)
        w.linear(f"{b}.pw2", latent, 4 * latent, bias=True)
        w.full(f"{b}.gamma", latent, value=0.3)
    w.conv(f"{g}.dac.entry", dac, latent, 7)
    for i, rate in enumerate(RATES):
        b, size, out = f"{g}.dac.blk.{i}", dac >> i, dac >> (i + 1)
        _snake(w, f"{b}.snake", size)
        w.up(f"{b}.conv", size, out, 2 * rate)
        for x in range(3):
            _snake(w, f"{b}.res.{x}.act1", out)
            _snake(w, f"{b}.res.{x}.act2", out)
            w.conv(f"{b}.res.{x}.conv1", out, out, 7, scale=0.5)
            w.conv(f"{b}.res.{x}.conv2", out, out, 1, scale=0.5)
    _snake(w, f"{g}.dac.post_snake", dac >> 4)
    w.conv(f"{g}.dac.post_conv", 1, dac >> 4, 7, scale=0.05)
    w.finish()


def _snake(w: _Writer, name: str, size: int) -> None:
    w.full(f"{name}.alpha", size, value=1.0)
    w.full(f"{name}.beta", size, value=1.0)


def _pocket_model(w: _Writer) -> None:
    _layers(w, "pockettts", kv=HEADS)
    w.w.add_rope_freq_base(1e4)
    w.w.add_layer_norm_eps(1e-5)
    pieces = ["<unk>", "<s>", "</s>", "\u2581", *map(chr, range(33, 127)), *"äöüßéèêàçñóíáúãõ"]
    types = [2, 3, 3] + [1] * (len(pieces) - 3) + [3] * 3
    pieces += ["<|pad|>", "<|bos_before_voice|>", "<|audio_bos|>"]
    scores = [-5.0 - i / 1000 if kind == 1 else -1000.0 for i, kind in enumerate(types)]
    w.vocabulary("t5", pieces, types, scores, add_space_prefix=True, remove_extra_whitespaces=False)
    w.rand("token_embd.weight", len(pieces), EMBD, scale=EMBD**0.5 * 0.5)
    w.norm("output_norm", EMBD, bias=True)
    w.finish()


def _pocket_projector(w: _Writer) -> None:
    latent, flow, depth, frequencies, mimi, layers, heads, ff, filters = 32, 48, 2, 8, 32, 2, 4, 64, 4
    width = filters << len(RATIOS)
    w.keys(
        "clip.audio",
        num_mel_bins=1,
        block_count=layers,
        embedding_length=mimi,
        attention__head_count=heads,
        feed_forward_length=ff,
        attention__layer_norm_epsilon=1e-5,
    )
    w.conv("a.seanet.conv_in", filters, 1, 7)
    for i, ratio in enumerate(RATIOS):
        b, c = f"a.seanet.blk.{i}", filters << i
        w.conv(f"{b}.res_conv1", c // 2, c, 3)
        w.conv(f"{b}.res_conv2", c, c // 2, 1)
        w.conv(f"{b}.scale_conv", 2 * c, c, 2 * ratio)
    w.conv("a.seanet.conv_out", mimi, width, 3)
    for i in range(layers):
        _mimi_layer(w, f"a.blk.{i}", mimi, ff)
    w.conv("a.downsample.conv", latent, mimi, 32, bias=False)
    w.linear("a.speaker_proj", EMBD, latent)

    w.keys(
        "clip.gen.audio",
        model_variant="english_2026-01",
        embedding_length=mimi,
        feed_forward_length=ff,
        block_count=layers,
        attention__head_count=heads,
        attention__layer_norm_epsilon=1e-5,
    )
    f = "a.gen.flow"
    w.linear(f"{f}.input_proj", flow, latent, bias=True)
    w.linear(f"{f}.cond_embd", flow, EMBD, bias=True)
    for i in range(2):
        steps = np.exp(-np.log(1e4) * np.arange(frequencies) / frequencies).astype(np.float32)
        w.w.add_tensor(f"{f}.time.{i}.freqs", steps)
        w.linear(f"{f}.time.{i}.up", flow, 2 * frequencies, bias=True)
        w.linear(f"{f}.time.{i}.down", flow, flow, bias=True)
        w.full(f"{f}.time.{i}.norm", flow, value=1.0)
    for i in range(depth):
        b = f"{f}.blk.{i}"
        w.norm(f"{b}.norm", flow, bias=True)
        w.linear(f"{b}.up", flow, flow, bias=True)
        w.linear(f"{b}.down", flow, flow, bias=True)
        w.linear(f"{b}.ada", 3 * flow, flow, bias=True)
    w.linear(f"{f}.final.ada", 2 * flow, flow, bias=True)
    w.linear(f"{f}.final.proj", latent, flow, bias=True)
    w.rand("a.gen.out_eos.weight", 1, EMBD)  # the end is a score above -4; scores are normal around the bias
    w.full("a.gen.out_eos.bias", 1, value=-5.8)
    w.linear("a.gen.input_linear", EMBD, latent)
    w.rand("a.gen.emb_mean", latent, scale=0.1)
    w.full("a.gen.emb_std", latent, value=1.0)
    g = "a.gen.wav"
    w.linear(f"{g}.quant_out", mimi, latent)
    w.rand(f"{g}.upsample.weight", mimi, 1, 32, scale=32**0.5, kind=np.float16)
    for i in range(layers):
        _mimi_layer(w, f"{g}.tfm.blk.{i}", mimi, ff)
    w.conv(f"{g}.seanet.conv_in", width, mimi, 7)
    for i, ratio in enumerate(reversed(RATIOS)):
        b, c = f"{g}.seanet.blk.{i}", width >> (i + 1)
        w.up(f"{b}.scale_conv", 2 * c, c, 2 * ratio, kind=np.float16)
        w.conv(f"{b}.res_conv1", c // 2, c, 3, scale=0.7)
        w.conv(f"{b}.res_conv2", c, c // 2, 1, scale=0.7)
    w.conv(f"{g}.seanet.conv_out", 1, filters, 3, scale=0.2)
    w.finish()


def _mimi_layer(w: _Writer, b: str, size: int, ff: int) -> None:
    for part in ("q", "k", "v", "out"):
        w.linear(f"{b}.attn_{part}", size, size)
    for number in (1, 2):
        w.norm(f"{b}.ln{number}", size, bias=True)
        w.full(f"{b}.ls{number}.weight", size, value=0.3)
    w.linear(f"{b}.ffn_up", ff, size)
    w.linear(f"{b}.ffn_down", size, ff)
