"""Pixels of pictures of every kind, what is no picture, and decoders that die."""

from __future__ import annotations

import io
import os
import signal
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from shardmill.core.errors import ModelError
from shardmill.models.pictures.decoder import PictureDecoder
from shardmill.models.pictures.pixels import BadPicture, PictureShape, describe, make_decoder, read_pixels
from shardmill.models.pictures.processor import read_processor
from tests.support.libraries import needed

Image = needed("PIL.Image")

from tests.support.picture_models import encode, noise  # noqa: E402

SQUARE = PictureShape(8, 8)
MOST = 1_000_000


def pixels(content: bytes, shape: PictureShape = SQUARE) -> np.ndarray[Any, Any]:
    width, height = shape.size
    return np.frombuffer(read_pixels(content, shape, MOST), np.uint8).reshape(height, width, 3)


def png_of(width: int, height: int) -> bytes:
    """The head of a picture of any size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", head), (b"IDAT", b""), (b"IEND", b""))
    )


def test_a_picture_is_resized_by_pillow() -> None:
    picture = noise(1)
    assert np.array_equal(pixels(encode(picture)), np.asarray(picture.resize((8, 8), 3)))


def test_the_middle_is_cut_out_and_what_is_outside_is_black() -> None:
    picture = noise(2, 50, 40)
    made = pixels(encode(picture), PictureShape(0, 0, shortest=20, crop_width=20, crop_height=20))
    assert np.array_equal(made, np.asarray(picture.resize((25, 20), 3))[:, 2:22])
    wide = pixels(encode(picture), PictureShape(0, 0, shortest=20, crop_width=20, crop_height=23))
    assert not wide[:2].any()
    assert not wide[-1].any()
    assert wide[2:-1].any(2).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_as_its_exif_says(orientation: int) -> None:
    from PIL import ImageOps

    picture = noise(3, 20, 12)
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(encode(picture, "PNG", exif=exif))))
    assert (upright.size == (12, 20)) == (orientation >= 5)
    assert np.array_equal(pixels(encode(picture, "PNG", exif=exif)), np.asarray(upright.resize((8, 8), 3)))


def test_what_is_transparent_is_on_white() -> None:
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    half = Image.new("RGBA", (8, 8), (255, 0, 0, 128))
    assert (pixels(encode(clear)) == 255).all()
    assert np.abs(pixels(encode(half))[0, 0].astype(int) - (255, 127, 127)).max() <= 1
    named = Image.new("P", (8, 8), 0)
    named.putpalette([9, 9, 9] * 256)
    assert (pixels(encode(named, "GIF", transparency=0)) == 255).all()


def test_sixteen_bits_are_the_upper_eight() -> None:
    values = np.array([[0, 255, 256, 32_768, 65_535] * 8] * 8, np.uint16)[:, :8]
    made = pixels(encode(Image.fromarray(values)))
    assert np.array_equal(made[..., 0], values >> 8)
    assert (made[..., 0] == made[..., 2]).all()


def test_four_colours_of_print_and_grey_become_three() -> None:
    assert (pixels(encode(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "TIFF")) == 255).all()
    assert (pixels(encode(Image.new("L", (8, 8), 77))) == 77).all()
    assert (pixels(encode(Image.new("1", (8, 8), 1))) == 255).all()


def test_an_animation_is_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for format in ("GIF", "PNG", "WEBP"):
        lossless = {"lossless": True} if format == "WEBP" else {}
        content = encode(frames[0], format, save_all=True, append_images=frames[1:], **lossless)
        assert (pixels(content)[0, 0] == (255, 0, 0)).all(), format


def test_what_is_no_picture_is_said() -> None:
    decode = make_decoder((SQUARE, MOST))
    whole = encode(noise(4), "JPEG")
    said = {
        b"<!DOCTYPE html><html><title>404</title>": "an HTML page of 39 bytes, and no picture that can be read",
        b'<?xml version="1.0"?><svg xmlns="x"/>': "an SVG drawing of 37 bytes",
        b"%PDF-1.7 and so on": "a PDF of 18 bytes",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n": "a PostScript drawing",
        b"\x01\x02\x03": "3 bytes that begin with 01 02 03",
        png_of(30_000, 30_000): "PNG of 30,000 x 30,000 pixels: over the limit of 1,000,000 pixels",
        png_of(20, 20): "PNG of 20 x 20 pixels in 57 bytes, which cannot be decoded",
        whole[: len(whole) // 2]: "JPEG of 60 x 45 pixels in",
        encode(Image.new("F", (8, 8), 0.5), "TIFF"): "pixels with fractions",
    }
    for content, why in said.items():
        with pytest.raises(BadPicture) as refused:
            decode(content)
        assert why in str(refused.value), content[:20]
    with pytest.raises(BadPicture, match="900,000 pixels: 8 x 7,200,000 once it is resized, over the limit"):
        read_pixels(png_of(1, 900_000), PictureShape(0, 0, 8, 8, 8), MOST)


def test_nothing_is_decoded_to_describe_bytes() -> None:
    assert describe(encode(noise(5), "JPEG")).startswith("a JPEG of ")
    assert describe(encode(noise(5), "WEBP")).startswith("a WebP of ")


def test_a_decoder_that_dies_costs_its_picture() -> None:
    decoder, content = PictureDecoder(SQUARE, MOST), encode(noise(6))
    try:
        first, bad = decoder.decode([content])
        assert not bad
        (helper,) = [each for each in psutil.Process().children() if "shardmill.core.helpers" in each.cmdline()]
        os.kill(helper.pid, signal.SIGKILL)
        _, bad = decoder.decode([content])
        assert bad[0].endswith("which cannot be decoded: the process that decoded it was ended by SIGKILL")
        again, bad = decoder.decode([None, content, b"no picture"])
        assert [*bad] == [2]
        assert not again[0].any()
        assert np.array_equal(again[1], first[0])
    finally:
        decoder.close()


def test_a_decoder_without_memory_costs_its_picture() -> None:
    decoder = PictureDecoder(SQUARE, 1 << 40, memory_bytes=700 << 20)
    try:
        made, bad = decoder.decode([encode(Image.new("1", (14_000, 14_000))), encode(noise(7))])
        assert [*bad] == [0]
        assert "which cannot be decoded: the process that decoded it needed more memory than it may use" in bad[0]
        assert made[1].any()
    finally:
        decoder.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ('{"image_processor_type": "DonutImageProcessor"}', "DonutImageProcessor"),
        ('{"image_processor_type": "ViTImageProcessor", "do_thumbnail": true}', "'do_thumbnail' \\(True\\)"),
        ('{"image_processor_type": "ViTImageProcessor", "do_pad": true}', "'do_pad'"),
        ('{"image_processor_type": "ViTImageProcessor", "size": {"longest_edge": 9}}', "longest_edge"),
        ('{"image_processor_type": "ViTImageProcessor", "do_resize": false}', "does not resize"),
        ("[1]", "not a processor"),
        ("{", "not a processor"),
    ],
)
def test_a_processor_that_is_not_known_is_refused(tmp_path: Path, settings: str, why: str) -> None:
    with pytest.raises(ModelError, match=r"it has no preprocessor_config\.json"):
        read_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(settings)
    with pytest.raises(ModelError, match=why):
        read_processor(tmp_path)


def test_settings_of_old_folders(tmp_path: Path) -> None:
    old = '{"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "resample": 3}'
    (tmp_path / "preprocessor_config.json").write_text(old)
    assert read_processor(tmp_path).shape == PictureShape(0, 0, 224, 224, 224, 3)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "ViTFeatureExtractor", "size": 224}')
    assert read_processor(tmp_path).shape == PictureShape(224, 224, resample=2)
