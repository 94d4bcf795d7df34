"""Models that hear: speech recognition and audio classification."""

from __future__ import annotations

from typing import Any

import torch

from tests.zoo.architecture import VOCABULARY, Architecture, Inputs, from_transformers, tokens

_WAV2VEC2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "ctc_loss_reduction": "mean",
}


def _speech() -> Inputs:
    """Two recordings of 400 samples, with transcripts."""
    return {"input_values": torch.randn(2, 400), "labels": tokens(length=6)}


def _spectrograms() -> Inputs:
    return {"input_features": torch.randn(2, 16, 48), "labels": tokens(length=6)}


def _clips() -> Inputs:
    return {"input_values": torch.randn(2, 32, 16), "labels": torch.randint(5, (2,))}


def _recognizer(name: str, model: str, **config: Any) -> Architecture:
    return from_transformers(name, "audio", model, _speech, **_WAV2VEC2 | config)


ARCHITECTURES = (
    _recognizer("Wav2Vec2", "Wav2Vec2ForCTC"),
    _recognizer("HuBERT", "HubertForCTC"),
    _recognizer("WavLM", "WavLMForCTC", num_buckets=16, max_bucket_distance=32),
    _recognizer("UniSpeech", "UniSpeechForCTC"),
    _recognizer("Data2Vec-Audio", "Data2VecAudioForCTC", conv_pos_kernel_size=5, num_conv_pos_embeddings=2),
    from_transformers(
        "Whisper",
        "audio",
        "WhisperForConditionalGeneration",
        _spectrograms,
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=24,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
    ),
    from_transformers(
        "AST",
        "audio",
        "ASTForAudioClassification",
        _clips,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        max_length=32,
        num_mel_bins=16,
        num_labels=5,
    ),
)
