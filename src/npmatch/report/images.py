"""Images as data: addresses, so that the page needs no second file."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_LARGEST = 192  # pixels; a thumbnail is shown at about half of this, larger ones only make the page heavy


def data_address(image: NDArray[np.uint8]) -> str:
    """A (H, W, C) image as a PNG in text. Of other than 1 or 3 channels the first 3, or the first, are shown."""
    channels = image[..., :3] if image.shape[-1] >= 3 else image[..., 0]
    picture = Image.fromarray(np.ascontiguousarray(channels))
    picture.thumbnail((_LARGEST, _LARGEST))
    file = BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(file.getvalue()).decode("ascii")
