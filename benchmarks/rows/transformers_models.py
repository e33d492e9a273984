"""Models of Hugging Face Transformers, run by the library's own functions and by linattn.

Float32, random weights, one sequence: prefill (logits of the last token), a training step (loss
and gradients), and one more token on the cache of the prefill.  Of 24 layers there are 4, with a
sixth of the vocabulary, so that each part has the share of the time that it has in a whole model;
larger models have 2 or 3 layers.
"""

from __future__ import annotations

import importlib
import operator as by_name
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from adapters import Transformers

from linattn._cli.bench import MODES
from linattn._cli.rows import Calls, Row

_SHAPE = {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


class Model(NamedTuple):
    """A model, its operator, and the lengths that it is timed with."""

    title: str
    family: str
    kind: str
    config: str
    given: dict[str, Any]
    operator: str
    heads: tuple[int, int, int]  #: heads, width of keys and of values; of scans channels, states
    prefill: int = 2048
    train: int = 512
    #: Of the operator, forward and with gradients.
    targets: tuple[float | None, float | None] = (10, 10)


#: How many times faster: prefill, training step.
PREFILL, TRAIN = 1.5, 1.45
#: The library's loops take a time that grows with the square of the tokens in training.
_SCAN: dict[str, Any] = {"prefill": 1024, "train": 128, "targets": (30, 20)}


def _mamba(title: str, width: int, layers: int, vocabulary: int, **more: Any) -> Model:
    return Model(
        title, "mamba", "MambaForCausalLM", "MambaConfig",
        _SHAPE | {
            "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers,
            "state_size": 16, "tie_word_embeddings": True,
        },
        "mamba_selective_scan", (2 * width, 16, 0), **(_SCAN | more),
    )  # fmt: skip


MODELS = (
    Model(
        "Qwen3.5-0.8B", "qwen3_5", "Qwen3_5ForCausalLM", "Qwen3_5TextConfig",
        _SHAPE | {
            "vocab_size": 248320 // 6, "intermediate_size": 3584, "num_key_value_heads": 2,
            "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
            "tie_word_embeddings": True,
        },
        "torch_chunk_gated_delta_rule", (16, 128, 128),
    ),
    Model(
        "Kimi's operator at these shapes", "kimi_linear", "KimiLinearForCausalLM",
        "KimiLinearConfig",
        _SHAPE | {
            "vocab_size": 163840 // 6, "intermediate_size": 3584, "num_key_value_heads": 8,
            "linear_head_dim": 128, "linear_num_heads": 16, "kv_lora_rank": 512,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "mlp_layer_types": ["dense"] * 4, "tie_word_embeddings": True,
        },
        "chunk_kimi_delta_attention", (16, 128, 128), 1024, 256,
    ),
    Model(
        "Mamba-2 130M", "mamba2", "Mamba2ForCausalLM", "Mamba2Config",
        _SHAPE | {
            "vocab_size": 50288 // 6, "hidden_size": 768, "num_heads": 24, "head_dim": 64,
            "n_groups": 1, "state_size": 128, "tie_word_embeddings": True,
        },
        "mamba2_chunk_scan", (24, 128, 64),
    ),
    _mamba("Mamba 130M", 768, 4, 50280 // 6, prefill=2048),
    _mamba("Mamba 2.8B", 2560, 2, 50280 // 32),
    Model(
        "RecurrentGemma 2B", "recurrent_gemma", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
        _SHAPE | {
            "vocab_size": 256000 * 3 // 26, "hidden_size": 2560, "num_hidden_layers": 3,
            "intermediate_size": 15360, "num_attention_heads": 10, "num_key_value_heads": 1,
        },
        "RecurrentGemmaRglru._rnn_scan", (2560, 0, 0), 1024, 128, (None, None),
    ),
    Model(
        "xLSTM 7B", "xlstm", "xLSTMForCausalLM", "xLSTMConfig",
        {
            "vocab_size": 50304 // 32, "hidden_size": 4096, "num_hidden_layers": 1, "num_heads": 8,
            "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
        },
        "xLSTMBackend.forward", (8, 256, 512), 1024, 256, (10, 10),
    ),
)  # fmt: skip


def functions(model: Model) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The module of a model; its functions, and linattn's in their place."""
    module = Transformers.module(model.family)
    importlib.import_module("transformers").logging.set_verbosity_error()
    torch, name = importlib.import_module("linattn.torch"), module.__name__
    with torch.patch_transformers():
        names = [x.removeprefix(f"{name}.") for x in torch.patched() if x.startswith(f"{name}.")]
        ours = {x: by_name.attrgetter(x)(module) for x in names}
    return module, {x: by_name.attrgetter(x)(module) for x in names}, ours


def use(module: Any, functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        owner, _, attribute = name.rpartition(".")
        setattr(by_name.attrgetter(owner)(module) if owner else module, attribute, function)


def both(model: Model, call: Callable[[], Any]) -> Calls:
    """A call by the library's functions and by linattn's."""
    module, library, ours = functions(model)

    def by(functions: dict[str, Any]) -> Callable[[], Any]:
        def run() -> Any:
            use(module, functions)
            try:
                return call()
            finally:
                use(module, library)

        return run

    return Calls(by(library), by(ours))


class Net:
    """A model, and the calls that are timed."""

    def __init__(self, model: Model, tokens: int, tiny: bool) -> None:
        self.torch = importlib.import_module("torch")
        self.torch.manual_seed(0)
        Transformers.module(model.family)
        package = importlib.import_module(f"transformers.models.{model.family}")
        small = {x: 64 for x in ("vocab_size", "intermediate_size") if tiny and x in model.given}
        if tiny and model.family not in ("mamba2", "recurrent_gemma"):  # whose heads determine it
            small |= {"hidden_size": 256}
        config = getattr(package, model.config)(**model.given | small)
        self.net = getattr(package, model.kind)(config).eval()
        self.ids = self.torch.randint(1, 50, (1, tokens))

    def prefill(self) -> Any:
        with self.torch.no_grad():
            return self.net(self.ids, use_cache=True, logits_to_keep=1)

    def train(self) -> None:
        self.net.train().zero_grad()
        self.net(self.ids, labels=self.ids, use_cache=False).loss.backward()

    def decode(self) -> Callable[[], Any]:
        first = self.prefill()
        cache = {x: first[x] for x in ("past_key_values", "cache_params") if x in first}

        def call() -> Any:
            with self.torch.no_grad():
                return self.net(self.ids[:, :1], use_cache=True, **cache)

        return call


def whole(model: Model, what: str, tokens: int, tiny: bool = False) -> Calls:
    net = Net(model, tokens, tiny)
    call = {"prefill": net.prefill, "training step": net.train}.get(what) or net.decode()
    return both(model, call)


def alone(model: Model, reverse: bool, n: int) -> Calls:
    """The operator by itself."""
    args, given = operands(model, n)
    for x in args:
        if hasattr(x, "is_floating_point") and x.is_floating_point():
            x.requires_grad_(reverse)
    function = by_name.attrgetter(model.operator)

    def call() -> None:
        o = function(Transformers.module(model.family))(*args, **given)
        if reverse:
            (o[0] if isinstance(o, tuple) else o).sum().backward()

    return both(model, call)


def operands(model: Model, n: int) -> tuple[list[Any], dict[str, Any]]:
    """As models give them: parts of one projection."""
    torch = importlib.import_module("torch")

    heads, d, m = model.heads
    if model.family == "mamba2":
        x, B, C = torch.randn(1, n, heads * m + 2 * d).split([heads * m, d, d], -1)
        args = [
            x.view(1, n, heads, m), torch.randn(1, n, heads), -torch.rand(heads) * heads,
            B.view(1, n, 1, d), C.view(1, n, 1, d), 256, torch.ones(heads), torch.ones(heads),
        ]  # fmt: skip
        return args, {"dt_softplus": True}
    if model.operator == "mamba_selective_scan":
        x, z = torch.randn(1, n, 2 * heads).mT.chunk(2, 1)
        dt, B, C = torch.randn(1, heads, n), torch.randn(1, d, n), torch.randn(1, d, n)
        A = -torch.arange(1.0, d + 1).expand(heads, d)
        ones = torch.ones(heads)
        return [x.mT.contiguous().mT, dt, A, B, C, ones, z, -4 * ones, True, True], {}
    if model.family == "recurrent_gemma":
        reset = (torch.arange(n) == 0)[None, :, None]
        return [None, torch.randn(1, n, heads), torch.rand(1, n, heads), reset, None], {}
    parts = torch.randn(1, n, heads * (2 * d + m)).split([heads * d, heads * d, heads * m], -1)
    q, k, v = (x.view(1, n, heads, -1) for x in parts)
    if model.family == "xlstm":
        package = importlib.import_module("transformers.models.xlstm")
        backend = package.modeling_xlstm.xLSTMBackend(package.xLSTMConfig(**model.given))
        gates = (torch.randn(1, heads, n) + x for x in (-3, 3))
        return [backend, *(x.transpose(1, 2) for x in (q, k, v)), *gates], {"mode": "train"}
    gate = (1, n, heads, d) if "kimi" in model.operator else (1, n, heads)
    args = [q, k, v, -torch.rand(gate), torch.rand(1, n, heads)]
    return args, {"use_qk_l2norm_in_kernel": True}


def _rows(model: Model):
    name, needed = f"{model.title}: library / linattn", [Transformers]
    for what, tokens, goal in (
        (f"prefill of {model.prefill:,}", model.prefill, PREFILL),
        (f"training step of {model.train}", model.train, TRAIN),
        ("one token", model.prefill, None),
    ):  # fmt: skip
        make = partial(whole, model, what.partition(" of ")[0])
        yield Row(f"{name}, {what}", make, (tokens,), needed, goal, True, tiny=(16, 1))
    for reverse, mode in MODES:
        n = model.train if reverse else model.prefill
        yield Row(f"{name}, operator, {mode}, {n:,} tokens", partial(alone, model, reverse), (n,),
                  needed, model.targets[reverse], True, tiny=(64,))  # fmt: skip


ROWS = [row for model in MODELS for row in _rows(model)]
