"""Whatever a camera, a scanner or a stranger wrote, decoded to the same square of bytes, or refused in one line."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from npmatch.data.decode import Unreadable, decode, default_image_size, read_header, stored_size
from npmatch.errors import UserError

SCENE = np.random.RandomState(0).randint(0, 256, (24, 32, 3), np.uint8)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def bomb(side: int) -> bytes:
    """A PNG of a few kB that decodes to side x side pixels."""
    rows = zlib.compress(b"\0" * ((side + 1) * 1000), 9)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_give_the_exact_center(kind: str) -> None:
    data = saved(Image.fromarray(SCENE), kind, **({"lossless": True} if kind == "WEBP" else {}))
    expected = SCENE[:, 4:28].transpose(2, 0, 1)
    assert torch.equal(decode(data, 24), torch.from_numpy(expected.copy()))


@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
def test_resizing_is_pillows_antialiased_bilinear(resize: str) -> None:
    image = Image.fromarray(np.hstack([SCENE[:, :24], SCENE[:, 8:]]))  # 48 x 24
    if resize == "crop":
        expected = image.resize((20, 10), Image.Resampling.BILINEAR).crop((5, 0, 15, 10))
    elif resize == "squash":
        expected = image.resize((10, 10), Image.Resampling.BILINEAR)
    else:
        expected = Image.new("RGB", (10, 10))
        expected.paste(image.resize((10, 5), Image.Resampling.BILINEAR), (0, 2))
    pixels = decode(saved(image, "PNG"), 10, resize)  # pyright: ignore[reportArgumentType]
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(expected))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_opaque_images_of_any_mode_look_as_pillow_shows_them(mode: str, channels: int) -> None:
    image = Image.fromarray(SCENE).convert(mode)
    expected = np.atleast_3d(np.asarray(image.convert("RGB").convert("L" if channels == 1 else "RGB")))[:, 4:28]
    assert np.array_equal(decode(saved(image, "PNG"), 24, channels=channels).permute(1, 2, 0).numpy(), expected)


def test_cmyk() -> None:
    image = Image.fromarray(SCENE).convert("CMYK")
    assert np.array_equal(
        decode(saved(image, "TIFF"), 24).permute(1, 2, 0).numpy(), np.asarray(image.convert("RGB"))[:, 4:28]
    )
    red = decode(saved(Image.new("RGB", (16, 16), "red").convert("CMYK"), "JPEG"), 8)
    assert red[0].min() > 250 and red[1:].max() < 5


def test_16_bit_gray_is_scaled_not_clipped_to_white() -> None:
    values = np.array([[0, 128, 129, 255], [256, 4096, 32768, 65535]] * 2, np.uint16)
    expected = np.rint(values / 257).astype(np.uint8)
    for kind in ("PNG", "TIFF"):
        assert np.array_equal(decode(saved(Image.fromarray(values), kind), 4, channels=1)[0].numpy(), expected)
    wide = Image.fromarray(values.astype(np.int32))
    assert wide.mode == "I" and np.array_equal(decode(saved(wide, "TIFF"), 4, channels=1)[0].numpy(), expected)
    with pytest.raises(Unreadable, match="32-bit"):
        decode(saved(Image.fromarray(values.astype(np.int32) + 1), "TIFF"), 4)


def test_float_images_keep_one_scale() -> None:
    ramp = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    assert np.array_equal(decode(saved(Image.fromarray(ramp), "TIFF"), 4, channels=1)[0].numpy(), np.rint(ramp * 255))
    for bad in (ramp * 255, ramp - 1, np.full((4, 4), np.nan, np.float32)):
        with pytest.raises(Unreadable, match=r"0\.\.1"):
            decode(saved(Image.fromarray(bad), "TIFF"), 4)


def test_transparent_pixels_show_white() -> None:
    drawing = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    drawing.paste((0, 0, 0, 255), (0, 0, 4, 8))
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([9, 9, 9, 0, 0, 0])
    palette.paste(1, (0, 0, 4, 8))
    gray = Image.new("LA", (8, 8), (0, 0))
    gray.paste((0, 255), (0, 0, 4, 8))
    for data in (saved(drawing, "PNG"), saved(palette, "PNG", transparency=0), saved(gray, "PNG")):
        pixels = decode(data, 8)
        assert pixels[:, :, :4].max() == 0 and pixels[:, :, 4:].min() == 255
    half = decode(saved(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), "PNG"), 4)
    assert half.min() == half.max() == 127


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_exif_rotation_is_applied_once(orientation: int, kind: str) -> None:
    upright = np.zeros((32, 32), np.uint8)
    upright[:16, :16], upright[:16, 16:], upright[16:, :16] = 240, 160, 80
    undo = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: np.transpose,
        6: np.rot90,
        7: lambda a: np.rot90(a, 2).T,
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(undo[orientation](upright)))
    pixels = decode(saved(stored, kind, exif=exif), 32, channels=1)[0].numpy().astype(int)
    assert np.abs(pixels - upright).max() < 12


def test_animations_give_their_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    for kind in ("GIF", "TIFF", "PNG", "WEBP", "MPO"):
        options = {"lossless": True} if kind == "WEBP" else {}
        red, green, blue = decode(saved(frames[0], kind, save_all=True, append_images=frames[1:], **options), 8)[
            :, 4, 4
        ]
        assert red >= 254 and green == 0 and blue == 0


def test_large_jpegs_are_decoded_small_with_the_same_look() -> None:
    smooth = Image.fromarray(SCENE).resize((1600, 1200), Image.Resampling.BICUBIC)
    data = saved(smooth, "JPEG", quality=95)
    whole = np.asarray(Image.open(BytesIO(data)).crop((200, 0, 1400, 1200)).resize((64, 64), Image.Resampling.BILINEAR))
    assert np.abs(decode(data, 64).permute(1, 2, 0).numpy().astype(int) - whole).mean() < 1


def test_npy_arrays_bring_any_number_of_channels(tmp_path: Path) -> None:
    cube = np.random.RandomState(1).randint(0, 256, (9, 9, 5), np.uint8)
    path = tmp_path / "cube.npy"
    np.save(path, cube)
    for image in (path, str(path), path.read_bytes()):
        assert torch.equal(decode(image, 9, channels=5), torch.from_numpy(cube.transpose(2, 0, 1).copy()))
        assert read_header(image) == (9, 5)
    half = decode(path, 4, channels=5)
    alone = np.asarray(Image.fromarray(cube[:, :, 3].copy()).resize((4, 4), Image.Resampling.BILINEAR))
    assert np.array_equal(half[3].numpy(), alone)
    with pytest.raises(Unreadable, match="has 5 channels, not 3"):
        decode(path, 9)
    np.save(path, (cube[:, :, 0].astype(np.uint16) * 257))
    assert np.array_equal(decode(path, 9, channels=1)[0].numpy(), cube[:, :, 0])
    np.save(path, np.array([[object()]]), allow_pickle=True)
    with pytest.raises(Unreadable, match="not an array of numbers"):
        decode(path, 9)


@pytest.mark.parametrize("side", [8_001, 9_000, 13_000, 20_000])
def test_bombs_are_refused_before_they_are_decoded(tmp_path: Path, side: int) -> None:
    data = bomb(side)
    path = tmp_path / "small.png"
    path.write_bytes(data)
    assert len(data) < 100_000
    tracemalloc.start()
    for image in (path, data):
        with pytest.raises(Unreadable, match="million pixels"):
            decode(image, 32)
        with pytest.raises(Unreadable, match="million pixels"):
            read_header(image)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_thin_strips_do_not_explode() -> None:
    strip = saved(Image.new("L", (60_000, 1), 7), "PNG")
    for resize in ("crop", "squash", "pad"):
        assert decode(strip, 256, resize, channels=1).shape == (1, 256, 256)
    assert decode(saved(Image.new("L", (1, 1), 7), "PNG"), 32).float().mean() == 7


def test_formats_outside_the_list_are_never_tried(tmp_path: Path) -> None:
    image = Image.fromarray(SCENE)
    for kind in ("EPS", "PDF", "ICO", "PPM", "TGA", "ICNS"):
        with pytest.raises(Unreadable, match="not a JPEG, PNG"):
            decode(saved(image, kind), 8)
    (tmp_path / "text.jpg").write_text("hello, I am text")
    with pytest.raises(Unreadable, match="not a JPEG, PNG"):
        decode(tmp_path / "text.jpg", 8)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    for name, reason in (
        ("empty.png", "the file is empty"),
        ("gone.png", "no such file"),
        (".", "not a regular file"),
        ("nul\0.png", "cannot be opened"),
        ("long" * 100, "cannot be opened"),
    ):
        for read in (read_header, lambda path: decode(path, 8)):
            with pytest.raises(Unreadable, match=reason):
                read(tmp_path / name)
    with pytest.raises(Unreadable, match="the file is empty"):
        decode(b"", 8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "npy"])
def test_broken_bytes_are_read_or_refused_but_never_crash(kind: str) -> None:
    """Truncation everywhere, and random bytes overwritten: the only error is Unreadable."""
    if kind == "npy":
        file = BytesIO()
        np.save(file, SCENE)
        whole = file.getvalue()
    else:
        whole = saved(Image.fromarray(SCENE), kind)
    chance = np.random.RandomState(2)
    for cut in chance.choice(len(whole) * 9 // 10, 60):
        with pytest.raises(Unreadable):
            decode(whole[:cut], 16)
    for _ in range(150):
        damaged = bytearray(whole)
        for place in chance.choice(min(len(whole), 400), 3):
            damaged[place] = chance.randint(256)
        try:
            assert decode(bytes(damaged), 16).shape == (3, 16, 16)
        except Unreadable as error:
            assert "\n" not in str(error)


def test_unicode_names_and_errors_that_travel(tmp_path: Path) -> None:
    path = tmp_path / "猫 café \U0001f431.png"
    path.write_bytes(saved(Image.fromarray(SCENE), "PNG"))
    assert decode(path, 8).shape == (3, 8, 8)
    error = pickle.loads(pickle.dumps(Unreadable("a.png", "the file is empty")))
    assert isinstance(error, Unreadable) and str(error) == "a.png: the file is empty"
    assert isinstance(error, UserError) and error.reason == "the file is empty"


def test_header_tells_size_and_gray() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_header(saved(Image.fromarray(SCENE), "JPEG", exif=exif)) == (24, 3)
    for mode, channels in (("1", 1), ("L", 1), ("LA", 1), ("I;16", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)):
        assert read_header(saved(Image.new(mode, (5, 7)), "PNG")) == (5, channels)


def test_sizes() -> None:
    assert [stored_size(size) for size in (8, 32, 64, 96, 224)] == [8, 32, 64, 110, 256]
    assert default_image_size([28, 32, 48]) == 32
    assert default_image_size([64, 96, 2000]) == 96
    assert default_image_size([100, 200, 300]) == 224
