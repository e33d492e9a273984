"""Models of Hugging Face Transformers, run by linattn and by the library's own functions.

Float32, random weights, one sequence: prefill (logits of the last token), a training step (loss
and gradients), one more token on the cache of the prefill, and the operator's share of linattn's
prefill.  Of 24 layers there are 4, with a sixth of the vocabulary, so that each part has the share
of the time that it has in a whole model; larger models have 2 or 3 layers.
Times of one thread are those that the processor spent on it, which other programs change least.
"""

from __future__ import annotations

import functools
import importlib
import operator as by_name
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from harness import Pair, interleave, threads
from report import Report, Row, options, say

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
    layers: int  #: with the operator
    operator: str
    heads: tuple[int, int, int]  #: heads, width of keys and of values; of scans channels, states
    prefill: int = 2048
    train: int = 512
    targets: tuple[float | None, float | None] = (
        10,
        10,
    )  #: of the operator, forward and with gradients


#: How many times faster: prefill, training step; the operator's share of prefill in percent.
PREFILL, TRAIN, SHARE = 1.5, 1.45, 15
#: The library's loops take a time that grows with the square of the tokens in training.
_SCAN: dict[str, Any] = {"prefill": 1024, "train": 128, "targets": (30, 20)}


def _mamba(title: str, width: int, layers: int, vocabulary: int, **more: Any) -> Model:
    family = "falcon_mamba" if "Falcon" in title else "mamba"
    kind = "FalconMamba" if "Falcon" in title else "Mamba"
    return Model(
        title, family, f"{kind}ForCausalLM", f"{kind}Config",
        _SHAPE | {
            "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers,
            "state_size": 16, "tie_word_embeddings": True,
        },
        layers, "mamba_selective_scan", (2 * width, 16, 0), **(_SCAN | more),
    )  # fmt: skip


MODELS = (
    Model(
        "Qwen3.5-0.8B", "qwen3_5", "Qwen3_5ForCausalLM", "Qwen3_5TextConfig",
        _SHAPE | {
            "vocab_size": 248320 // 6, "intermediate_size": 3584, "num_key_value_heads": 2,
            "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
            "tie_word_embeddings": True,
        },
        3, "torch_chunk_gated_delta_rule", (16, 128, 128),
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
        3, "chunk_kimi_delta_attention", (16, 128, 128), 1024, 256,
    ),
    Model(
        "Mamba-2 130M", "mamba2", "Mamba2ForCausalLM", "Mamba2Config",
        _SHAPE | {
            "vocab_size": 50288 // 6, "hidden_size": 768, "num_heads": 24, "head_dim": 64,
            "n_groups": 1, "state_size": 128, "tie_word_embeddings": True,
        },
        4, "mamba2_chunk_scan", (24, 128, 64),
    ),
    _mamba("Mamba 130M", 768, 4, 50280 // 6, prefill=2048),
    _mamba("Mamba 2.8B", 2560, 2, 50280 // 32),
    _mamba("Falcon-Mamba 7B", 4096, 2, 65024 // 32),
    Model(
        "RecurrentGemma 2B", "recurrent_gemma", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
        _SHAPE | {
            "vocab_size": 256000 * 3 // 26, "hidden_size": 2560, "num_hidden_layers": 3,
            "intermediate_size": 15360, "num_attention_heads": 10, "num_key_value_heads": 1,
        },
        2, "RecurrentGemmaRglru._rnn_scan", (2560, 0, 0), 1024, 128, (None, None),
    ),
    Model(
        "xLSTM 7B", "xlstm", "xLSTMForCausalLM", "xLSTMConfig",
        {
            "vocab_size": 50304 // 32, "hidden_size": 4096, "num_hidden_layers": 1, "num_heads": 8,
            "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
        },
        1, "xLSTMBackend.forward", (8, 256, 512), 1024, 256, (10, 10),
    ),
)  # fmt: skip


#: Operators of which the library's form takes seconds.
SLOW = "chunk_kimi_delta_attention", "mamba_selective_scan"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="1 by default")
    parser.add_argument("--family", help="one model alone")
    args = parser.parse_args()
    report = Report(f"Models of Transformers, {args.threads} thread(s)", args)
    sys.modules["fla"] = None  # type: ignore[assignment]  # else models call its GPU kernels
    try:
        import torch
        import transformers
    except ImportError as error:
        say(args, f"skipped: {error}")
        return 0
    transformers.logging.set_verbosity_error()
    with threads(args.threads):
        for model in MODELS:
            if args.family not in (None, model.family):
                continue
            torch.manual_seed(0)
            rounds = 2 if args.quick or model.operator in SLOW else 5
            clock = time.process_time if args.threads == 1 else time.perf_counter
            pairs = Pairs(model, rounds, clock)
            whole(report, model, pairs)
            operator(report, model, pairs)
    return report.finish()


class Pairs:
    """One call by the library's functions and by linattn's, and their times compared."""

    def __init__(self, model: Model, rounds: int, clock: Callable[[], float]) -> None:
        self.rounds, self.clock = rounds, clock
        from linattn.torch import patch_transformers, patched

        name = f"transformers.models.{model.family}.modeling_{model.family}"
        self.module = importlib.import_module(name)
        with patch_transformers():
            names = [x.removeprefix(f"{name}.") for x in patched() if x.startswith(f"{name}.")]
            self.ours = self._named(names)
        self.library = self._named(names)

    def _named(self, names: list[str]) -> dict[str, Any]:
        return {x: by_name.attrgetter(x)(self.module) for x in names}

    def use(self, functions: dict[str, Any]) -> None:
        for name, function in functions.items():
            owner, _, attribute = name.rpartition(".")
            setattr(
                by_name.attrgetter(owner)(self.module) if owner else self.module,
                attribute,
                function,
            )

    def time(self, call: Callable[[], Any], times: int = 1) -> Pair:
        def by(functions: dict[str, Any]) -> Callable[[], Any]:
            def run() -> Any:
                self.use(functions)
                return call()

            return run

        try:
            return interleave(
                by(self.library), by(self.ours), times * self.rounds, clock=self.clock
            )
        finally:
            self.use(self.library)

    def share(self, name: str, call: Callable[[], Any]) -> float:
        """The part of a call's time with linattn that is its function's."""
        within = 0.0
        function = self.ours[name]

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal within
            begin = self.clock()
            result = function(*args, **kwargs)
            within += self.clock() - begin
            return result

        try:
            self.use(self.ours | {name: timed})
            call()
            within, begin = 0.0, self.clock()
            call()
            return within / (self.clock() - begin)
        finally:
            self.use(self.library)


def add(report: Report, what: str, pair: Pair, target: float | None, unit: float = 1.0) -> None:
    detail = f"{unit * pair.a:.3g} against {unit * pair.b:.3g} {'ms' if unit == 1e3 else 's'}"
    report.add(
        Row(what, pair.ratio, pair.low, pair.high, target=target, at_least=True, detail=detail)
    )


def whole(report: Report, model: Model, pairs: Pairs) -> None:
    import torch

    package = importlib.import_module(f"transformers.models.{model.family}")
    net = getattr(package, model.kind)(getattr(package, model.config)(**model.given))
    ids = torch.randint(1, 1000, (1, model.prefill))

    def prefill() -> Any:
        with torch.no_grad():
            return net(ids, use_cache=True, logits_to_keep=1)

    def train() -> None:
        net.zero_grad()
        some = ids[:, : model.train]
        net(some, labels=some, use_cache=False).loss.backward()

    name = f"{model.title}: library / linattn"
    net.eval()
    add(report, f"{name}, prefill of {model.prefill:,}", pairs.time(prefill), PREFILL)
    report.add(Row(
        f"{model.title}: operator's share of linattn's prefill",
        100 * pairs.share(model.operator, prefill), unit="%", target=SHARE,
    ))  # fmt: skip
    net.train()
    add(report, f"{name}, training step of {model.train}", pairs.time(train), TRAIN)
    net.eval()
    first = prefill()
    cache = {name: first[name] for name in ("past_key_values", "cache_params") if name in first}

    def decode() -> Any:
        with torch.no_grad():
            return net(ids[:, :1], use_cache=True, **cache)

    add(report, f"{name}, one token", pairs.time(decode, 4), None, 1e3)


def operands(model: Model, n: int) -> tuple[list[Any], dict[str, Any]]:
    """As models give them: parts of one projection."""
    import torch

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


def operator(report: Report, model: Model, pairs: Pairs) -> None:
    """The operator by itself, and the convolution in front of it."""
    import torch

    heads, d, m = model.heads
    channels = heads  # Mamba's
    if m:
        channels = heads * m + 2 * d * (1 if model.family == "mamba2" else heads)
    for n, backward, aim in (
        (model.prefill, False, model.targets[0]), (model.train, True, model.targets[1]),
    ):  # fmt: skip
        x, weight = torch.randn(1, n, channels).transpose(1, 2), torch.randn(channels, 4)
        convolution: tuple[list[Any], dict[str, Any]] = [x, weight, None, "silu"], {}
        form = f"{'forward + backward' if backward else 'forward'}, {n:,} tokens"
        for what, function, (args, given), target in (
            ("operator", model.operator, operands(model, n), aim),
            ("convolution", "causal_conv1d_fn", convolution, None),
        ):
            if function not in pairs.ours:  # RecurrentGemma's convolution is PyTorch's
                continue
            call = _call(pairs.module, function, args, given, backward)
            name = f"{model.title}: library / linattn, {what}, {form}"
            add(report, name, pairs.time(call), target, 1e3)


def _call(module: Any, function: str, args: Any, given: Any, backward: bool) -> Callable[[], None]:
    import torch

    for x in args:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            x.requires_grad_(backward)

    def call() -> None:
        o = by_name.attrgetter(function)(module)(*args, **given)
        if backward:
            (o[0] if isinstance(o, tuple) else o).sum().backward()

    return call


if __name__ == "__main__":
    sys.exit(main())
