"""Projectors with random weights, one for each way in which rows of an image or a sound are computed and placed.

gemma3     16 rows, seen as a whole              idefics3   slices with text between them
pixtral    any size, a row behind every line     llava      64 rows, no text around them
qwen2vl    any size, M-RoPE                      qwen3vl    the same, and rows for the first layers
internvl   tiles of one size, several in a call  gemma4v    any size, seen as a whole, several in a call
           (llava-hybrid: beside states that cannot be cut)
ultravox   sound, 375 rows for 30 seconds        omni       images of gemma3 and sound of ultravox in one file
"""

from __future__ import annotations

import pathlib

import gguf
import numpy as np
import tiny_models

OUT, EMBD, FF, HEADS, SIZE, PATCH, MERGE = tiny_models.EMBD, 32, 64, 2, 64, 8, 2
MARKS = (
    "<start_of_image>", "<end_of_image>", "<|vision_start|>", "<|vision_end|>", "[IMG_END]",
    "<img>", "</img>", "<|image>", "<image|>", "<fake_token_around_image>", "<global-img>", "\n\n", *(f"<row_{y}_col_{x}>" for y in range(1, 5) for x in range(1, 5)),
)  # fmt: skip
TYPES = {"qwen2vl": "qwen2vl_merger", "qwen3vl": "qwen3vl_merger", "llava": "mlp"}
TEXT = {
    "gemma3": "swa", "omni": "swa", "qwen2vl": "mrope", "qwen3vl": "deep", "idefics3": "llama", "pixtral": "llama",
    "llava": "llama", "internvl": "llama", "gemma4v": "swa", "ultravox": "llama", "llava-hybrid": "hybrid",
}  # fmt: skip
"""Projectors, and the kind of text model that each is tried with."""
KINDS = tuple(TEXT)


def text_model(path: pathlib.Path, kind: str, *, context: int = 2048) -> pathlib.Path:
    """The text model for a projector of this kind."""
    match TEXT[kind]:
        case "swa":
            return tiny_models.swa(path, context=context, marks=MARKS)
        case "hybrid":
            return tiny_models.hybrid(path, context=context)
        case "llama":
            return tiny_models.llama(path, context=context, marks=MARKS)
        case name:
            return tiny_models.mrope(path, context=context, marks=MARKS, deep=name == "deep")


class _Writer:
    def __init__(self, path: pathlib.Path, seed: int) -> None:
        self.w = gguf.GGUFWriter(str(path), "clip")
        self.w.add_type("mmproj")
        self.random = np.random.default_rng(seed)

    def rand(self, name: str, *shape: int, kind: type = np.float32) -> None:
        x = self.random.standard_normal(shape, dtype=np.float32) * np.float32(0.15)
        self.w.add_tensor(name, x.astype(kind))

    def full(self, name: str, *shape: int, value: float = 0.0) -> None:
        self.w.add_tensor(name, np.full(shape, value, np.float32))

    def norm(self, name: str, size: int = EMBD, *, bias: bool = True) -> None:
        self.full(f"{name}.weight", size, value=1.0)
        if bias:
            self.full(f"{name}.bias", size)

    def linear(self, name: str, rows: int, cols: int, *, bias: bool = True) -> None:
        self.rand(f"{name}.weight", rows, cols)
        if bias:
            self.full(f"{name}.bias", rows)

    def block(
        self, b: str, *, joined: bool = False, gate: bool = False, bias: bool = True, k_bias: bool = True
    ) -> None:
        self.norm(f"{b}.ln1", bias=bias)
        self.norm(f"{b}.ln2", bias=bias)
        if joined:
            self.linear(f"{b}.attn_qkv", 3 * EMBD, EMBD)
        else:
            for name in ("attn_q", "attn_k", "attn_v"):
                self.linear(f"{b}.{name}", EMBD, EMBD, bias=bias and (name != "attn_k" or k_bias))
        self.linear(f"{b}.attn_out", EMBD, EMBD, bias=bias)
        self.linear(f"{b}.ffn_up", FF, EMBD, bias=bias)
        if gate:
            self.linear(f"{b}.ffn_gate", FF, EMBD, bias=bias)
        self.linear(f"{b}.ffn_down", EMBD, FF, bias=bias)

    def vision(self, kind: str, *, part: str = "") -> None:
        w = self.w
        w.add_bool("clip.has_vision_encoder", True)
        w.add_string(f"clip.{part}projector_type", TYPES.get(kind, kind))
        w.add_array("clip.vision.image_mean", [0.5] * 3)
        w.add_array("clip.vision.image_std", [0.5] * 3)
        keys = {
            "image_size": SIZE,
            "patch_size": PATCH,
            "embedding_length": EMBD,
            "feed_forward_length": FF,
            "block_count": 2,
            "attention.head_count": HEADS,
            "projection_dim": OUT,
        }
        if kind in ("gemma3", "idefics3", "internvl", "gemma4v"):
            keys["projector.scale_factor"] = MERGE
        if kind == "idefics3":
            keys["preproc_image_size"] = 4 * SIZE
        if kind in ("qwen2vl", "qwen3vl", "pixtral"):
            keys["spatial_merge_size"] = MERGE
        for key, value in keys.items():
            w.add_uint32(f"clip.vision.{key}", value)
        w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
        w.add_bool("clip.use_silu" if kind == "pixtral" else "clip.use_gelu", True)
        self.rand("v.patch_embd.weight", EMBD, 3, PATCH, PATCH)
        if kind in ("qwen2vl", "qwen3vl"):
            self.rand("v.patch_embd.weight.1", EMBD, 3, PATCH, PATCH)
        if kind in ("gemma3", "idefics3", "qwen3vl", "internvl"):
            self.full("v.patch_embd.bias", EMBD)
        if kind in ("gemma3", "idefics3", "qwen3vl", "llava", "internvl"):
            self.rand("v.position_embd.weight", (SIZE // PATCH) ** 2 + (kind in ("llava", "internvl")), EMBD)
        if kind == "gemma4v":
            self.rand("v.position_embd.weight", 2, 256, EMBD)  # of columns, and of lines
        for i in range(2):
            self.block(f"v.blk.{i}", joined=kind == "qwen3vl", gate=kind == "pixtral", bias=kind != "pixtral")
        if kind in ("llava", "internvl"):
            self.rand("v.class_embd", EMBD)
        self.norm("v.pre_ln" if kind in ("llava", "pixtral") else "v.post_ln", bias=kind != "pixtral")
        self.vision_projector(kind)

    def vision_projector(self, kind: str) -> None:
        if kind == "gemma4v":
            self.rand("mm.input_projection.weight", OUT, EMBD)
        elif kind == "internvl":
            self.norm("mm.model.mlp.0", 4 * EMBD)
            self.linear("mm.model.mlp.1", OUT, 4 * EMBD)
            self.linear("mm.model.mlp.3", OUT, OUT)
        elif kind == "gemma3":
            self.full("mm.soft_emb_norm.weight", EMBD, value=1.0)
            self.rand("mm.input_projection.weight", EMBD, OUT)
        elif kind == "idefics3":
            self.rand("mm.model.fc.weight", OUT, EMBD * MERGE**2)
        elif kind == "pixtral":
            self.full("mm.input_norm.weight", EMBD, value=1.0)
            self.rand("mm.patch_merger.weight", EMBD, EMBD * MERGE**2)
            self.linear("mm.1", OUT, EMBD, bias=False)
            self.linear("mm.2", OUT, OUT, bias=False)
            self.rand("v.token_embd.img_break", OUT)
        elif kind == "llava":
            self.linear("mm.0", OUT, EMBD)
            self.linear("mm.2", OUT, OUT)
        else:
            self.linear("mm.0", 4 * EMBD, 4 * EMBD)
            self.linear("mm.2", OUT, 4 * EMBD)
        if kind == "qwen3vl":
            self.norm("v.deepstack.0.norm", 4 * EMBD)
            self.linear("v.deepstack.0.fc1", 4 * EMBD, 4 * EMBD)
            self.linear("v.deepstack.0.fc2", OUT, 4 * EMBD)

    def audio(self, *, part: str = "", mel: int = 80, stack: int = 4) -> None:
        w = self.w
        w.add_bool("clip.has_audio_encoder", True)
        w.add_string(f"clip.{part}projector_type", "ultravox")
        keys = {
            "embedding_length": EMBD,
            "feed_forward_length": FF,
            "block_count": 1,
            "attention.head_count": HEADS,
            "projection_dim": OUT,
            "num_mel_bins": mel,
            "projector.stack_factor": stack,
        }
        for key, value in keys.items():
            w.add_uint32(f"clip.audio.{key}", value)
        w.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
        for number, cols in ((1, mel), (2, EMBD)):
            self.rand(f"a.conv1d.{number}.weight", EMBD, cols, 3, kind=np.float16)
            self.full(f"a.conv1d.{number}.bias", EMBD, 1)
        self.rand("a.position_embd.weight", 1500, EMBD)
        self.block("a.blk.0", k_bias=False)
        self.norm("a.post_ln")
        self.full("mm.a.norm_pre.weight", stack * EMBD, value=1.0)
        self.rand("mm.a.mlp.1.weight", 2 * OUT, stack * EMBD)
        self.full("mm.a.norm_mid.weight", OUT, value=1.0)
        self.rand("mm.a.mlp.2.weight", OUT, OUT)

    def close(self) -> None:
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def projector(path: pathlib.Path, kind: str, *, seed: int = 3) -> pathlib.Path:
    w = _Writer(path, seed)
    if kind == "omni":
        w.vision("gemma3", part="vision.")
        w.audio(part="audio.")
    elif kind == "ultravox":
        w.audio()
    else:
        w.vision(kind.partition("-")[0])
    w.close()
    return path
