"""Models that see: classification, detection, segmentation, depth, and images with text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.zoo.architecture import TOKENS, VOCABULARY, Architecture, Inputs, from_transformers, images, text, tokens

_VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
_CLASSES = {"num_labels": 5}
_BACKBONE = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]} | {
    "layer_type": "basic",
    "out_features": ["stage4"],
}
_WORDS = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4} | {
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _vision(name: str, model: str, inputs: Callable[[], Inputs] | None = None, **config: Any) -> Architecture:
    return from_transformers(name, "vision", model, inputs or images(), **_CLASSES | config)


def _boxes() -> Inputs:
    """Two images with three boxes (centre x, centre y, width, height) each."""
    boxes = [torch.rand(3, 4) * 0.4 + 0.2 for _ in range(2)]
    return images(64, 0)() | {"labels": [{"class_labels": torch.randint(5, (3,)), "boxes": b} for b in boxes]}


def _segments() -> Inputs:
    return images(64, 0)() | {"labels": torch.randint(5, (2, 64, 64))}


def _points() -> Inputs:
    return images(64, 0)() | {"input_points": torch.rand(2, 1, 2, 2) * 64}


def _noise() -> Inputs:
    """With the noise that says which patches are masked: the model would draw it."""
    return images(classes=0)() | {"noise": torch.rand(2, 16)}


def _captions() -> Inputs:
    ids = tokens()
    ids[:, -1] = VOCABULARY - 1  # CLIP pools where the largest id is
    return images(classes=0)() | {"input_ids": ids, "attention_mask": torch.ones(2, TOKENS, dtype=torch.int64)}


def _contrastive() -> Inputs:
    return _captions() | {"return_loss": True}


def _image_in_text() -> Inputs:
    """The image's sixteen patches stand where its token is."""
    sentence = text()
    ids = torch.cat([torch.full((2, 16), 4), sentence["input_ids"]], 1)
    return images(classes=0)() | {"input_ids": ids, "labels": ids.masked_fill(ids == 4, -100)}


ARCHITECTURES = (
    _vision("ViT", "ViTForImageClassification", **_VIT),
    _vision("DeiT", "DeiTForImageClassification", **_VIT),
    _vision("BEiT", "BeitForImageClassification", **_VIT, use_relative_position_bias=True),
    _vision("DINOv2", "Dinov2ForImageClassification", **_VIT),
    _vision(
        "ViT-MAE",
        "ViTMAEForPreTraining",
        _noise,
        **_VIT,
        decoder_num_attention_heads=4,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_intermediate_size=32,
    ),
    _vision(
        "Swin",
        "SwinForImageClassification",
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    _vision(
        "Swin-v2",
        "Swinv2ForImageClassification",
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    _vision("ConvNeXt", "ConvNextForImageClassification", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    _vision("ConvNeXt-V2", "ConvNextV2ForImageClassification", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    _vision("ResNet", "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    _vision("RegNet", "RegNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    _vision("MobileNetV2", "MobileNetV2ForImageClassification", depth_multiplier=0.25, image_size=32),
    _vision("PoolFormer", "PoolFormerForImageClassification", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    _vision(
        "DETR",
        "DetrForObjectDetection",
        _boxes,
        backbone_config=_BACKBONE,
        use_timm_backbone=False,
        d_model=32,
        num_queries=6,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    ),
    _vision(
        "YOLOS",
        "YolosForObjectDetection",
        _boxes,
        **_VIT | {"image_size": [64, 64]},
        num_detection_tokens=6,
    ),
    _vision(
        "SegFormer",
        "SegformerForSemanticSegmentation",
        _segments,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    ),
    _vision(
        "DPT",
        "DPTForSemanticSegmentation",
        _segments,
        **_VIT | {"image_size": 64, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
    ),
    _vision(
        "SAM",
        "SamModel",
        _points,
        vision_config={
            "hidden_size": 16,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 64,
            "patch_size": 16,
            "window_size": 2,
            "global_attn_indexes": [1],
            "mlp_dim": 32,
            "num_pos_feats": 8,
        },
        prompt_encoder_config={"hidden_size": 16, "image_size": 64, "patch_size": 16, "mask_input_channels": 4},
        mask_decoder_config={
            "hidden_size": 16,
            "mlp_dim": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "iou_head_hidden_dim": 16,
            "iou_head_depth": 2,
        },
    ),
    from_transformers(
        "CLIP", "vision and text", "CLIPModel", _contrastive, text_config=_WORDS, vision_config=_VIT, projection_dim=16
    ),
    from_transformers("SigLIP", "vision and text", "SiglipModel", _contrastive, text_config=_WORDS, vision_config=_VIT),
    from_transformers(
        "LLaVA",
        "vision and text",
        "LlavaForConditionalGeneration",
        _image_in_text,
        text_config=_WORDS | {"model_type": "llama"},
        vision_config=_VIT | {"model_type": "clip_vision_model"},
        image_token_index=4,
        vision_feature_layer=-1,
    ),
)
