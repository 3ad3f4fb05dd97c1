"""Attention variants and the encoders around them. Knows tensors, not tasks."""

from . import attention as _variants  # noqa: F401  (registers them)
from .attention.base import MultiHeadAttention
from .decoder import LanguageModel, build_decoder
from .encoder import Encoder, build_encoder
from .heads import Classifier, PairClassifier, build_classifier
from .registry import (
    UnknownAttention,
    attention_forms,
    build_attention,
    check_settings,
    list_attentions,
    register_attention,
    state_grows,
)
from .translator import Translator, build_translator

__all__ = [
    "Classifier",
    "Encoder",
    "LanguageModel",
    "MultiHeadAttention",
    "PairClassifier",
    "Translator",
    "UnknownAttention",
    "attention_forms",
    "build_attention",
    "build_classifier",
    "build_decoder",
    "build_encoder",
    "build_translator",
    "check_settings",
    "list_attentions",
    "register_attention",
    "state_grows",
]
