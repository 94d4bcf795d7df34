"""Image models of timm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo import libraries
from tests.zoo.architecture import Architecture, Inputs


def _timm(name: str, model: str, size: int = 32, **options: Any) -> Architecture:
    """A model class of timm's, or one of the functions that it registers, with some sizes made small."""

    def make() -> nn.Module:
        return getattr(libraries.load("timm").models, model)(num_classes=5, **options)

    def inputs() -> Inputs:
        return {"x": torch.randn(2, 3, size, size)}

    return Architecture(name, "timm", "timm", make, inputs)


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 4}

ARCHITECTURES = (
    _timm("ResNet-D", "resnet10t"),
    _timm("DenseNet", "densenet121", growth_rate=8, block_config=(1, 2, 2, 1)),
    _timm("EfficientNet", "test_efficientnet", 64),
    _timm("MobileNetV3", "mobilenetv3_small_050", 64),
    _timm("RegNetY", "regnety_002"),
    _timm("NFNet", "test_nfnet"),
    _timm("timm-ConvNeXt", "test_convnext"),
    _timm("CoAtNet", "test_coatnet", 64, img_size=64),
    _timm("MambaOut", "test_mambaout"),
    _timm("EdgeNeXt", "edgenext_xx_small"),
    _timm("timm-ViT", "vit_tiny_patch16_224", **_VIT),
    _timm("EVA-02", "eva02_tiny_patch14_224", **_VIT),
    _timm("CaiT", "cait_xxs24_224", **_VIT),
    _timm("XCiT", "xcit_nano_12_p8_224", **_VIT),
    _timm("MLP-Mixer", "MlpMixer", img_size=32, patch_size=8, embed_dim=32, num_blocks=1),
    _timm("FocalNet", "FocalNet", embed_dim=8, depths=(1, 1, 1, 1)),
)
