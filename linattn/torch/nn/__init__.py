"""Attention layers on the operators of linattn.torch, and a transformer built from them.

Layers map tokens (batch, n, embed_dim) to tokens.  Causal ones run in three forms on the same
weights: on whole sequences, on parts with a state between them, and token by token.
"""

from ._attention_layer import Attention
from .conv import ConvolvedState, ShortConvolution
from .delta import FastWeightAttention
from .gated import GatedAttention, GatedDeltaNet
from .language_model import ModelState, TransformerLM
from .linear import FeedforwardKernelAttention, LinearAttention, PerformerAttention
from .linformer import LinformerAttention
from .mamba import Mamba
from .softmax import Cache, SoftmaxAttention
from .transformer import TransformerBlock

__all__ = [
    "Attention",
    "Cache",
    "ConvolvedState",
    "FastWeightAttention",
    "FeedforwardKernelAttention",
    "GatedAttention",
    "GatedDeltaNet",
    "LinearAttention",
    "LinformerAttention",
    "Mamba",
    "ModelState",
    "PerformerAttention",
    "ShortConvolution",
    "SoftmaxAttention",
    "TransformerBlock",
    "TransformerLM",
]
