"""The GGUF file of the eyes: a projector as llama.cpp's libmtmd loads it beside the chat model.

Owns the mapping from our names to the library's. Knows nothing of training.
"""

import gguf
import numpy as np
import torch

from llamasrv.demo.eyes import EyesConfig

LIMIT = 4_000_000
_IN_BLOCK = {
    "norm_1": "ln1",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_out",
    "norm_2": "ln2",
    "up": "ffn_up",
    "down": "ffn_down",
}
_OUTSIDE = {
    "patches.weight": "v.patch_embd.weight",
    "places": "v.position_embd.weight",
    "norm.weight": "v.post_ln.weight",
    "norm.bias": "v.post_ln.bias",
    "first.weight": "mm.0.weight",
    "first.bias": "mm.0.bias",
    "second.weight": "mm.2.weight",
    "second.bias": "mm.2.bias",
}


def export_eyes(checkpoint, target):
    """Write `target` from the weights in a checkpoint of train_eyes.py. Returns the size in bytes."""
    state, config = torch.load(checkpoint, map_location="cpu", weights_only=True)["eyes"], EyesConfig()
    writer = gguf.GGUFWriter(target, "clip")
    _describe(writer, config)
    for name, tensor in state.items():
        _add_tensor(writer, name, tensor.float().numpy(), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = target.stat().st_size
    if size > LIMIT:
        raise ValueError(f"{target} has {size:,} bytes, more than {LIMIT:,}")
    return size


def eyes_of(path, shapes):
    """{our name: tensor} of the weights in such a file, in these shapes by our names: where training can go on without a
    run."""
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    tensors = {name: found[_gguf_name(name)].astype(np.float32) for name in shapes}
    return {name: torch.from_numpy(tensor).reshape(shapes[name]) for name, tensor in tensors.items()}


def _describe(writer, config):
    writer.add_type("mmproj")
    writer.add_name("llamasrv demo eyes")
    writer.add_description(
        "Sees one coloured shape, digit or letter on plain ground, for the demonstration model of llamasrv"
    )
    writer.add_author("the llamasrv project")
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    sizes = {
        "image_size": config.size,
        "patch_size": config.patch,
        "embedding_length": config.width,
        "feed_forward_length": config.hidden,
        "block_count": config.layers,
        "attention.head_count": config.heads,
        "projection_dim": config.out,
    }
    for key, value in sizes.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", config.epsilon)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    # Else the library leaves out the last block, as LLaVA does.
    writer.add_array("clip.vision.feature_layer", [config.layers])


def _add_tensor(writer, name, values, config):
    if name == "patches.weight":
        values = values.reshape(config.width, 3, config.patch, config.patch)
    half = values.ndim == 2 and name != "places"
    writer.add_tensor(_gguf_name(name), np.ascontiguousarray(values, np.float16 if half else np.float32))


def _gguf_name(name):
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, index, part, kind = name.split(".")
    return f"v.blk.{index}.{_IN_BLOCK[part]}.{kind}"
