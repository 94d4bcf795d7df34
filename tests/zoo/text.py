"""Language models: encoders, decoders, mixtures of experts, encoders with a decoder, recurrent ones."""

from __future__ import annotations

from typing import Any

from tests.zoo.architecture import (
    VOCABULARY,
    Architecture,
    from_transformers,
    masked_text,
    text,
    text_pairs,
    text_without_cache,
)

# Most configurations have these names; the others are spelled out.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_DECODER = _SIZES | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TWO = {"num_hidden_layers": 2}  # of different kinds
_GROUPED = _DECODER | {"num_key_value_heads": 2}
_GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_EXPERTS = _GROUPED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _encoder(name: str, model: str, **config: Any) -> Architecture:
    return from_transformers(name, "text encoder", model, masked_text, **_SIZES | config)


def _decoder(name: str, model: str, new_tokens: int = 0, **config: Any) -> Architecture:
    return from_transformers(name, "text decoder", model, text, new_tokens=new_tokens, **config)


def _experts(name: str, model: str, new_tokens: int = 0, **config: Any) -> Architecture:
    return from_transformers(name, "mixture of experts", model, text, new_tokens=new_tokens, **config)


def _pair(name: str, model: str, new_tokens: int = 0, **config: Any) -> Architecture:
    return from_transformers(name, "encoder and decoder", model, text_pairs, new_tokens=new_tokens, **config)


ENCODERS = (
    _encoder("BERT", "BertForMaskedLM"),
    _encoder("RoBERTa", "RobertaForMaskedLM"),
    from_transformers(
        "DistilBERT",
        "text encoder",
        "DistilBertForMaskedLM",
        masked_text,
        vocab_size=VOCABULARY,
        dim=32,
        n_layers=1,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=64,
    ),
    _encoder("ALBERT", "AlbertForMaskedLM", embedding_size=16),
    _encoder("ELECTRA", "ElectraForMaskedLM", embedding_size=16),
    _encoder(
        "DeBERTa-v2",
        "DebertaV2ForMaskedLM",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        max_relative_positions=16,
    ),
    _encoder("MPNet", "MPNetForMaskedLM"),
    _encoder(
        "ModernBERT",
        "ModernBertForMaskedLM",
        pad_token_id=0,
        local_attention=8,
        global_attn_every_n_layers=2,
        num_hidden_layers=2,
    ),
    _encoder("ConvBERT", "ConvBertForMaskedLM", embedding_size=16),
    _encoder("BigBird", "BigBirdForMaskedLM", attention_type="original_full"),
    _encoder("MobileBERT", "MobileBertForMaskedLM", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
)
DECODERS = (
    _decoder("GPT-2", "GPT2LMHeadModel", 8, **_GPT),
    _decoder(
        "GPT-Neo",
        "GPTNeoForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    ),
    _decoder("GPT-NeoX", "GPTNeoXForCausalLM", **_DECODER),
    _decoder("GPT-J", "GPTJForCausalLM", **_GPT, rotary_dim=4),
    _decoder(
        "OPT",
        "OPTForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=64,
    ),
    _decoder("BLOOM", "BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4),
    _decoder("Falcon", "FalconForCausalLM", 8, **_DECODER),
    _decoder("MPT", "MptForCausalLM", vocab_size=VOCABULARY, d_model=32, n_layers=1, n_heads=4, max_seq_len=64),
    _decoder("Llama", "LlamaForCausalLM", 8, **_GROUPED),
    _decoder("Mistral", "MistralForCausalLM", **_GROUPED, sliding_window=8),
    _decoder("Qwen2", "Qwen2ForCausalLM", **_GROUPED | _TWO),
    _decoder("Qwen3", "Qwen3ForCausalLM", **_GROUPED, head_dim=8),
    _decoder("Gemma", "GemmaForCausalLM", **_GROUPED, head_dim=8),
    _decoder("Gemma-2", "Gemma2ForCausalLM", 8, **_GROUPED | _TWO, head_dim=8, sliding_window=8),
    _decoder("Gemma-3", "Gemma3ForCausalLM", **_GROUPED, head_dim=8, sliding_window=8),
    _decoder("Phi", "PhiForCausalLM", **_DECODER),
    _decoder("Phi-3", "Phi3ForCausalLM", **_GROUPED),
    _decoder("StableLM", "StableLmForCausalLM", **_GROUPED),
    _decoder("Cohere", "CohereForCausalLM", **_GROUPED),
    _decoder("OLMo", "OlmoForCausalLM", **_GROUPED),
    _decoder("OLMo-2", "Olmo2ForCausalLM", **_GROUPED),
)
EXPERTS = (
    _experts("Mixtral", "MixtralForCausalLM", 8, **_GROUPED, num_local_experts=4, num_experts_per_tok=2),
    _experts("Qwen2-MoE", "Qwen2MoeForCausalLM", **_EXPERTS, shared_expert_intermediate_size=32),
    _experts("Qwen3-MoE", "Qwen3MoeForCausalLM", **_EXPERTS, head_dim=8),
    _experts("OLMoE", "OlmoeForCausalLM", **_GROUPED, num_experts=4, num_experts_per_tok=2),
    _experts("GraniteMoE", "GraniteMoeForCausalLM", **_GROUPED, num_local_experts=4, num_experts_per_tok=2),
    _experts(
        "DeepSeek-V3",
        "DeepseekV3ForCausalLM",
        **_DECODER | _TWO,
        num_key_value_heads=4,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    from_transformers(
        "Switch-Transformers",
        "mixture of experts",
        "SwitchTransformersForConditionalGeneration",
        text_pairs,
        **_T5,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_experts=4,
    ),
)
PAIRS = (
    _pair("T5", "T5ForConditionalGeneration", 8, **_T5),
    _pair("BART", "BartForConditionalGeneration", **_BART),
    _pair("Pegasus", "PegasusForConditionalGeneration", **_BART),
    _pair("Marian", "MarianMTModel", **_BART),
    _pair("mBART", "MBartForConditionalGeneration", **_BART),
    _pair("M2M-100", "M2M100ForConditionalGeneration", **_BART),
)
RECURRENT = (
    from_transformers(
        "Mamba",
        "state space",
        "MambaForCausalLM",
        text,
        vocab_size=VOCABULARY,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    from_transformers(
        "Mamba-2",
        "state space",
        "Mamba2ForCausalLM",
        text,
        vocab_size=VOCABULARY,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=1,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    from_transformers(
        "RWKV",
        "state space",
        "RwkvForCausalLM",
        text_without_cache,
        vocab_size=VOCABULARY,
        hidden_size=32,
        attention_hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        context_length=64,
    ),
)
ARCHITECTURES = (*ENCODERS, *DECODERS, *EXPERTS, *PAIRS, *RECURRENT)
