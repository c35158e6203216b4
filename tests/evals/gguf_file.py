"""A small Llama of transformers' written as a .gguf file, so that a judge can be read from one without a download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType

from scdd.data.tokenizer import TextTokenizer

TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_gguf(path: Path, model: Any, tokenizer: TextTokenizer) -> Path:
    """The weights in float32, the tokenizer as llama.cpp keeps a byte-level BPE."""
    config, bpe = model.config, json.loads(tokenizer.to_str())["model"]
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(bpe["vocab"], key=bpe["vocab"].__getitem__))
    writer.add_token_types([TokenType.NORMAL] * len(bpe["vocab"]))
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(tokenizer.bos_id)
    writer.add_eos_token_id(tokenizer.eos_id)
    for name, tensor in model.state_dict().items():
        array = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp turns neighbours, transformers halves
            heads = config.num_attention_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(_renamed(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _renamed(name: str) -> str:
    part, _, _ = name.rpartition(".")
    if not part.startswith("model.layers."):
        return f"{TENSORS[part]}.weight"
    _, _, layer, rest = part.split(".", 3)
    return f"blk.{layer}.{TENSORS[rest]}.weight"
