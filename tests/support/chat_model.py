"""A tiny chat model as `transformers` saves it: bf16, a long context, two tokens that stop it."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

Generation: Any = GenerationConfig
FastTokenizer: Any = PreTrainedTokenizerFast

WIDTH, CONTEXT = 64, 131_072
STOPS = [2, 5]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
STAYS = {
    ".gitattributes": "hidden",
    "training_args.bin": "a pickle",
    "modeling_own.py": "a program",
}
"""Files of the folder that do not travel, and why."""


def chat_folder(folder: Path, family: str) -> Path:
    """Save a model that counts: after token t it says t + 1, until one of `STOPS`."""
    config = AutoConfig.for_model(
        family, vocab_size=WIDTH, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
        bos_token_id=1, eos_token_id=STOPS, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(7)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for layer in model.model.layers:  # what they add is small beside the embedding
            layer.self_attn.o_proj.weight.mul_(0.01)
            layer.mlp.down_proj.weight.mul_(0.01)
        model.model.embed_tokens.weight.copy_(torch.eye(WIDTH))
        model.lm_head.weight.copy_(torch.eye(WIDTH).roll(1, 0))
    model.generation_config = Generation(
        eos_token_id=STOPS, bos_token_id=1, pad_token_id=0, do_sample=True, temperature=0.7
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    names = ["<pad>", "<s>", "</s>", "user:", "bot:", "<|end|>", "<unk>"]
    names += [f"w{i}" for i in range(len(names), WIDTH)]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = FastTokenizer(
        tokenizer_object=words, bos_token="<s>", eos_token="<|end|>", pad_token="</s>",
        unk_token="<unk>", model_max_length=CONTEXT,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    special = {"eos_token": "<|end|>", "pad_token": "</s>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    for name in ("README.md", "LICENSE", *STAYS):
        (folder / name).write_text(f"{name}\n")
    return folder


def chat_text() -> str:
    """Text of words that the model's tokenizer knows."""
    draw = random.Random(3)
    return "".join(f"w{draw.randrange(7, WIDTH)} " * 2 + "\n" for _ in range(9000))


def files_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder but the weights."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".safetensors"
    }
