"""Any image network of the timm library, by its name there."""

from __future__ import annotations

import os
from difflib import get_close_matches

from npmatch.errors import UserError
from npmatch.nets.backbone import Backbone, Wrapped


def timm_model(name: str, channels: int, *, pretrained: bool = False, dropout: float = 0.0) -> Backbone:
    """A timm network without its classifier. Only `pretrained` downloads anything."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # what timm downloads with would report back
    import timm

    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=5)
        hint = f"near it: {', '.join(near)}" if near else "timm.list_models() lists what exists"
        raise UserError(f"net.name: no network {name!r}, neither ours nor timm's; {hint}")
    try:
        network = timm.create_model(name, pretrained=pretrained, in_chans=channels, num_classes=0)
    except Exception as error:
        if not pretrained:
            raise
        # What a download can raise depends on the versions of four libraries; each of them means the same here.
        cure = "connect to the internet once, or set net.pretrained = false"
        raise UserError(f"net.name: no pretrained weights for {name!r} ({error}); {cure}") from error
    feature_dim = network.head_hidden_size
    assert isinstance(feature_dim, int)
    return Wrapped(network, feature_dim, dropout=dropout)
