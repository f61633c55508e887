"""The GGUF file: weights in Q8_0, tokenizer, chat template and what the file says about itself.

Owns the mapping from our names to llama.cpp's. Knows nothing of training.
"""

import gguf
import numpy as np
import torch

from llamasrv.demo import NAME
from llamasrv.demo.corpus.chat import TEMPLATE
from llamasrv.demo.model import Config, DemoModel
from llamasrv.demo.tokenizer import CONTROL, MARKS, SPECIAL, vocabulary_and_merges

LIMIT = 8_000_000
TEMPERATURE = 0.2
DESCRIPTION = (
    "The demonstration model of llamasrv: tiny, trained from nothing on text made up by a program, good for trying "
    "the server's features and for nothing else. For real work serve a real model: llamasrv serve --model FILE"
)

_IN_BLOCK = {
    "attention_norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
    "output": "attn_output.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
_OUTSIDE = {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}


def export(checkpoints, target, *, weights="model", full_precision=False):
    """Write `target` from the weights (`model`, or their running `average`) in a checkpoint of train.py, or from the
    mean of several. Returns the size in bytes."""
    states = [torch.load(path, map_location="cpu", weights_only=True)[weights] for path in checkpoints]
    state = {name: sum(other[name] for other in states) / len(states) for name in states[0]}
    config = Config(layers=1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks.")))
    writer = gguf.GGUFWriter(target, "qwen2")
    _describe(writer, config, full_precision)
    _add_tokenizer(writer)
    for name, tensor in state.items():
        _add_tensor(writer, gguf_name(name), tensor.float().numpy(), full_precision)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = target.stat().st_size
    if not full_precision and size > LIMIT:
        raise ValueError(f"{target} has {size:,} bytes, more than {LIMIT:,}")
    return size


def model_of(path):
    """The model in a GGUF file, with its weights as Q8_0 left them: where training can go on without a run."""
    reader = gguf.GGUFReader(path)
    found = {tensor.name: tensor for tensor in reader.tensors}
    model = DemoModel(Config(layers=int(reader.fields["qwen2.block_count"].contents())))
    weights = {}
    for name in model.state_dict():
        tensor = found[gguf_name(name)]
        weights[name] = torch.from_numpy(
            np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        )
    model.load_state_dict(weights)
    return model


def gguf_name(name):
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, index, part = name.split(".")
    return f"blk.{index}.{_IN_BLOCK[part]}"


def _describe(writer, config, full_precision):
    writer.add_name("llamasrv demo model")
    writer.add_basename(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_author("the llamasrv project")
    writer.add_license("MIT")
    writer.add_size_label("5M")
    writer.add_tags(["demonstration", "tiny", "synthetic"])
    writer.add_languages(["en"])
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.hidden)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_vocab_size(config.vocabulary)
    # What a server samples with unless it is told otherwise: so small a model has to be kept close to its best guess.
    writer.add_float32("general.sampling.temp", TEMPERATURE)
    kind = gguf.LlamaFileType.ALL_F32 if full_precision else gguf.LlamaFileType.MOSTLY_Q8_0
    writer.add_file_type(kind)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer):
    tokens, merges = vocabulary_and_merges()
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    at = {mark: tokens.index(mark) for mark in SPECIAL}
    for mark in CONTROL:
        kinds[at[mark]] = gguf.TokenType.CONTROL
    for mark in MARKS:
        kinds[at[mark]] = gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(at["<|endoftext|>"])
    writer.add_eos_token_id(at["<|im_end|>"])
    writer.add_eot_token_id(at["<|im_end|>"])
    writer.add_pad_token_id(at["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_uint32("tokenizer.ggml.fim_pre_token_id", at["<|fim_prefix|>"])
    writer.add_uint32("tokenizer.ggml.fim_suf_token_id", at["<|fim_suffix|>"])
    writer.add_uint32("tokenizer.ggml.fim_mid_token_id", at["<|fim_middle|>"])
    writer.add_chat_template(TEMPLATE)


def _add_tensor(writer, name, values, full_precision):
    values = np.ascontiguousarray(values, dtype=np.float32)
    if values.ndim == 1 or full_precision:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
