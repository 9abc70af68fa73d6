"""Which models of `transformers` do we compute, and what does their config.json say? Pure.

Invariant: what `model_config` reads computes here what it computes there, or it is refused with
every reason at once; what `config_fields` writes is read back as the same model. A family is a row
of `FAMILIES`, chosen by `model_type`, and differs in fields of ModelConfig alone.

Sources: `configuration_*.py` and `modeling_*.py` of transformers 5.23. Version 4 has the scaling of
positions in `rope_scaling` and their base beside it, version 5 has both in `rope_parameters`;
of a file with all of them the first decides. Version 4 also says `torch_dtype` for `dtype`.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from contracts.terms.errors import Malformed, Refused
from training.config import MAX_LAYERS, ModelConfig

CONTEXT = "max_position_embeddings"
DTYPES: Mapping[str | None, Literal["F32", "F16", "BF16"]] = {
    None: "F32", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
}  # fmt: skip
"""What safetensors calls what a config.json does."""


@dataclass(frozen=True)
class Family:
    """How models of one `model_type` are written down, and what all of them have.

    `defaults`: the fields of its own that a config.json may hold, with what `transformers` takes
    if one is missing. A feature whose field is not among them is none of the family's.
    """

    architecture: str
    defaults: Mapping[str, Any]
    qkv_bias: bool = False
    qk_norm: bool = False

    def has(self, config: ModelConfig) -> bool:
        """Whether a config.json of this family can say all of `config`."""
        return (
            (self.qkv_bias, self.qk_norm) == (config.qkv_bias, config.qk_norm)
            and (not config.window or _WINDOW in self.defaults)
            and (not config.full_layers or _KINDS in self.defaults)
            and (not config.unrotated_layers or _ROTATED in self.defaults)
            and (config.width % config.num_heads == 0 or self is not FAMILIES["llama"])
        )


_WINDOW, _KINDS, _ROTATED = "sliding_window", "layer_types", "no_rope_layers"
_FIRST = "max_window_layers"
_OF_ALL = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000, "tie_word_embeddings": False,
}  # fmt: skip
_BIASES = {"attention_bias": False, "mlp_bias": False}
_BY_LAYER = {"use_sliding_window": False, _KINDS: None}
_QWEN = _BY_LAYER | {
    "num_key_value_heads": 32, _WINDOW: 4096, _FIRST: 28, CONTEXT: 32_768,
}  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM",
        _BIASES | {"num_key_value_heads": None, "head_dim": None, CONTEXT: 2048},
    ),
    "mistral": Family(
        "MistralForCausalLM",
        {"num_key_value_heads": 8, "head_dim": None, _WINDOW: 4096, CONTEXT: 131_072},
    ),
    "qwen2": Family("Qwen2ForCausalLM", _QWEN | {"head_dim": None}, qkv_bias=True),
    "qwen3": Family(
        "Qwen3ForCausalLM", _QWEN | {"head_dim": 128, "attention_bias": False}, qk_norm=True
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        _BIASES
        | _BY_LAYER
        | {
            "num_key_value_heads": 4, "head_dim": None, _WINDOW: None, CONTEXT: 32_768,
            _ROTATED: None, "no_rope_layer_interval": 4,
            "rope_theta": 2_000_000, "tie_word_embeddings": True,
        },
    ),
}  # fmt: skip
"""By `model_type`; a new model is written as the first that has all of it."""

_LEFT_OUT = {
    "num_local_experts": "mixtures of experts", "num_experts": "mixtures of experts",
    "n_routed_experts": "mixtures of experts", "attn_logit_softcapping": "soft caps",
    "final_logit_softcapping": "soft caps", "attention_bias": "biases of o_proj",
    "mlp_bias": "biases of the feed-forward part",
}  # fmt: skip
"""Fields that ask for what no family here has."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ORIGINAL = "original_max_position_embeddings"
_LLAMA3 = {
    "factor": "rope_factor", "low_freq_factor": "rope_low_factor",
    "high_freq_factor": "rope_high_factor", _ORIGINAL: "rope_context",
}  # fmt: skip
"""Fields of scaled positions, and what ours are called."""


def family_of(config: ModelConfig) -> str:
    """The `model_type` that a new model is given."""
    return next(name for name, family in FAMILIES.items() if family.has(config))


# ------------------------------------------------------------------------------------- reading


def model_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """The model that the fields of a config.json describe; its rows are as long as its context.

    Args:
        raw: The fields.
        where: The folder, for errors.

    Raises:
        Refused: it computes what we cannot; says all that is in the way.
        Malformed: a size is missing.
    """
    family = FAMILIES.get(str(raw.get("model_type")))
    fields = _OF_ALL | dict(family.defaults if family else {}) | dict(raw)
    if problems := _problems(raw, fields, family):
        raise Refused(f"model: {where} cannot be trained here: {'; '.join(problems)}")
    assert family is not None  # that it has none is a problem
    try:
        return _read(fields, family)
    except ValueError as error:
        raise Malformed(f"model: {where}: config.json: {error}") from error


def dtype_of(raw: Mapping[str, Any]) -> str | None:
    """What a config.json calls the dtype of its weights."""
    value = raw.get("dtype", raw.get("torch_dtype"))
    return None if value is None else str(value)


def _read(fields: Mapping[str, Any], family: Family) -> ModelConfig:
    width, num_heads = _whole(fields, "hidden_size"), _whole(fields, "num_attention_heads")
    num_layers, head_dim = _whole(fields, "num_hidden_layers"), _whole(fields, "head_dim", 0)
    if num_layers > MAX_LAYERS:  # before lists of them are made
        raise ValueError(f"num_hidden_layers is {num_layers}, at most {MAX_LAYERS} are known")
    unrotated = _unrotated(fields, num_layers)
    window, full = _windows(fields, family, num_layers, unrotated)
    rope = _rope(fields)
    scaling = _LLAMA3 if rope["rope_type"] == "llama3" else {}
    return ModelConfig(
        vocab_size=_whole(fields, "vocab_size"),
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_whole(fields, "num_key_value_heads", num_heads),
        ffn_width=_whole(fields, "intermediate_size"),
        sequence_length=_whole(fields, CONTEXT),
        rope_theta=int(rope["rope_theta"]),
        norm_eps=_as_decimal(float(fields["rms_norm_eps"])),
        tied_head=bool(fields["tie_word_embeddings"]),
        head_dim=0 if head_dim * num_heads == width else head_dim,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        window=window,
        full_layers=full,
        unrotated_layers=unrotated,
        **{ours: rope[theirs] for theirs, ours in scaling.items()},
    )


def _as_decimal(eps: float) -> float:
    """What a converter wrote as fp32: 1e-5 for 9.999999747378752e-06, to which fp32 adds alike."""
    decimal = round(eps, 12)
    return decimal if struct.pack("f", decimal) == struct.pack("f", eps) else eps


def _unrotated(fields: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    if _ROTATED not in fields:
        return ()
    if (flags := fields[_ROTATED]) is None:
        interval = _whole(fields, "no_rope_layer_interval")
        return tuple(n for n in range(num_layers) if interval and (n + 1) % interval == 0)
    if not isinstance(flags, list) or len(flags) < num_layers:
        raise ValueError(f"no_rope_layers is {flags!r}, a list of a number a layer is needed")
    return tuple(number for number in range(num_layers) if not flags[number])


def _windows(
    fields: Mapping[str, Any], family: Family, num_layers: int, unrotated: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """The window, and the layers that have none."""
    is_used = fields["use_sliding_window"] if "use_sliding_window" in family.defaults else True
    window = _whole(fields, _WINDOW, 0) if is_used else 0
    if (kinds := fields.get(_KINDS)) is not None:
        sliding = [kind == _SLIDING for kind in kinds]
        if len(sliding) != num_layers or (any(sliding) and not window):
            raise ValueError(
                f"{_KINDS} is {kinds!r}, there are {num_layers} layers and the window is {window}"
            )
    elif _ROTATED in family.defaults:
        sliding = [number in unrotated for number in range(num_layers)]
    else:
        first = _whole(fields, _FIRST, 0) if _FIRST in family.defaults else 0
        sliding = [number >= first for number in range(num_layers)]
    if not window or not any(sliding):
        return 0, ()
    return window, tuple(number for number, each in enumerate(sliding) if not each)


def _rope(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    found = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
    kind = {"rope_theta": fields["rope_theta"], "rope_type": found.get("type", "default")}
    return kind | found | ({_ORIGINAL: fields[_ORIGINAL]} if _ORIGINAL in fields else {})


def _whole(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r}, a whole number is needed")
    return value


# ----------------------------------------------------------------------------- what we refuse


def _problems(
    raw: Mapping[str, Any], fields: Mapping[str, Any], family: Family | None
) -> list[str]:
    """Everything in a config.json that our decoder does not compute."""
    problems = []
    if family is None:
        known = ", ".join(FAMILIES)
        problems.append(f"model_type is {raw.get('model_type')!r}, only {known} are known")
    elif (raw.get("architectures") or [family.architecture]) != [family.architecture]:
        problems.append(
            f"architectures is {raw['architectures']}, only {family.architecture} is known"
        )
    problems += [
        f"{name} is {raw[name]!r}: {what} are not computed here"
        for name, what in _LEFT_OUT.items()
        if raw.get(name)
    ]
    if family is not None:
        problems += [
            f"{name} is {raw[name]!r}, and no {raw['model_type']} has that"
            for name in (_WINDOW, _KINDS, _ROTATED)
            if raw.get(name) and name not in family.defaults
        ]
    if fields["hidden_act"] != "silu":
        problems.append(f"hidden_act is {fields['hidden_act']!r}, only 'silu' is known")
    if raw.get("attention_dropout"):
        problems.append(f"attention_dropout is {raw['attention_dropout']}, it has to be 0")
    if raw.get("auto_map"):
        problems.append("auto_map names programs, which never travel: save the model without it")
    if raw.get("quantization_config"):
        problems.append("its weights are quantized")
    if (dtype := dtype_of(raw)) not in DTYPES:
        known = ", ".join(str(each) for each in DTYPES if each)
        problems.append(f"dtype is {dtype!r}, only {known} are known")
    if not isinstance(fields["tie_word_embeddings"] or False, bool):
        problems.append(f"tie_word_embeddings is {raw['tie_word_embeddings']!r}, no true or false")
    if not _is_number(fields["rms_norm_eps"]):
        problems.append(f"rms_norm_eps is {raw['rms_norm_eps']!r}, a number is needed")
    kinds = raw.get(_KINDS)
    if kinds is not None and (
        not isinstance(kinds, list) or any(each not in (_FULL, _SLIDING) for each in kinds)
    ):
        problems.append(f"{_KINDS} is {kinds!r}, only {_FULL} and {_SLIDING} are known")
    if raw.get(_WINDOW) == 0:
        problems.append(f"{_WINDOW} is 0, so no token sees any")
    return problems + _rope_problems(fields)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is int and abs(value) < 2**63


def _rope_problems(fields: Mapping[str, Any]) -> list[str]:
    names = ("rope_scaling", "rope_parameters")
    problems = [
        f"{name} is {fields[name]!r}, no fields"
        for name in names
        if not isinstance(fields.get(name) or {}, Mapping)
    ]
    if problems:
        return problems
    rope = _rope(fields)
    if any(isinstance(value, Mapping) for value in rope.values()):
        return ["rope_parameters differ from layer to layer"]
    kind, theta = rope["rope_type"], rope["rope_theta"]
    if kind not in ("default", "llama3"):
        problems.append(
            f"its rotary positions are scaled ({kind!r}): only 'default' and 'llama3' are known"
        )
    if rope.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1)) not in (None, 1):
        problems.append("partial_rotary_factor: only a part of each head is rotated")
    if not _is_number(theta) or theta != int(theta):
        problems.append(f"rope_theta is {theta!r}, a whole number is needed")
    if kind == "llama3":
        problems += [
            f"{name} of its positions is {rope.get(name)!r}, a number is needed"
            for name in _LLAMA3
            if not _is_number(rope.get(name)) or rope[name] != round(rope[name], 6)
        ]
        if type(rope.get(_ORIGINAL)) is float:
            problems.append(f"{_ORIGINAL} is {rope[_ORIGINAL]}, a whole number is needed")
    return problems


# ------------------------------------------------------------------------------------- writing


def config_fields(config: ModelConfig) -> dict[str, Any]:
    """The config.json of a new model, for versions 4 and 5."""
    model_type = family_of(config)
    family, numbers = FAMILIES[model_type], range(config.num_layers)
    sliding = [config.window_of(number) > 0 for number in numbers]
    scaling: dict[str, Any] = {"rope_type": "default"}
    if config.rope_factor != 1:
        scaling = {"rope_type": "llama3"} | {
            theirs: getattr(config, ours) for theirs, ours in _LLAMA3.items()
        }
    theta = {"rope_theta": float(config.rope_theta)}
    is_usual = not (config.head_dim or family.defaults["head_dim"])
    own = {
        **_BIASES,
        _WINDOW: config.window or None,
        "use_sliding_window": config.window > 0,
        _FIRST: sliding.index(True) if config.window else config.num_layers,
        _KINDS: [_SLIDING if each else _FULL for each in sliding],
        _ROTATED: [int(number not in config.unrotated_layers) for number in numbers],
    }
    return {
        "architectures": [family.architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ffn_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        CONTEXT: config.sequence_length,
        "rms_norm_eps": config.norm_eps,
        **({} if is_usual else {"head_dim": config.head_width}),
        **theta,
        "rope_scaling": scaling if config.rope_factor != 1 else None,
        "rope_parameters": theta | scaling,
        "hidden_act": "silu",
        **{name: value for name, value in own.items() if name in family.defaults},
        "attention_dropout": 0.0,
        "tie_word_embeddings": config.tied_head,
        "dtype": "float32",
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "use_cache": True,
    }
