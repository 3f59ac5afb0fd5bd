"""The pixels of one picture, as transformers' processors make them with Pillow. Runs in processes of their own.

Pillow alone is imported: a helper's memory is limited, and it starts in a fraction of a second.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# What Pillow may read. Of its other formats some are drawings, which it hands to another program.
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
_WHITE = (255, 255, 255, 255)
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_HEAD_BYTES = 1024
# What bytes are, by their beginning in small letters, whatever their name says.
_KINDS = (
    (b"%pdf", "a PDF"),
    (b"%!ps", "a PostScript drawing"),
    (b"pk\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip"),
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"\xff\xd8\xff", "a JPEG"),
    (b"\x89png", "a PNG"),
    (b"gif8", "a GIF"),
    (b"bm", "a BMP"),
    (b"ii*\x00", "a TIFF"),
    (b"mm\x00*", "a TIFF"),
)


class BadPicture(Exception):
    """A picture without pixels; the message says what was seen."""


@dataclass(frozen=True, slots=True)
class PictureShape:
    """How a picture is made as large as a model wants it: resized, then cut to the middle.

    It is resized to a `width` and `height`, or so that its shorter side is `shortest`; 0 is for not asked. `resample`
    is Pillow's number of a filter.
    """

    width: int
    height: int
    shortest: int = 0
    crop_width: int = 0
    crop_height: int = 0
    resample: int = 3

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the result."""
        return (self.crop_width, self.crop_height) if self.crop_width else (self.width, self.height)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """The size of a picture before its middle is cut out.

        >>> PictureShape(0, 0, shortest=224, crop_width=224, crop_height=224).resized(500, 375)
        (298, 224)
        """
        if not self.shortest:
            return self.width, self.height
        if width <= height:
            return self.shortest, int(self.shortest * height / width)
        return int(self.shortest * width / height), self.shortest


def make_decoder(given: tuple[PictureShape, int]) -> Callable[[bytes], bytes]:
    """What a helper process does with the bytes of each picture: its pixels, rows of red, green and blue."""
    shape, max_pixels = given
    from PIL import Image

    # The limit is the user's, and checked here.
    Image.MAX_IMAGE_PIXELS = None

    def answer(content: bytes) -> bytes:
        try:
            return read_pixels(content, shape, max_pixels)
        except (BadPicture, MemoryError):
            raise
        except Exception as error:
            seen = _describe_picture(content)
            raise BadPicture(f"{seen}, which cannot be decoded: {type(error).__name__}: {error}"[:300]) from None

    return answer


def read_pixels(content: bytes, shape: PictureShape, max_pixels: int) -> bytes:
    """The pixels of a picture at the size that a model wants."""
    from PIL import UnidentifiedImageError

    try:
        picture = _open(content)
    except UnidentifiedImageError:
        raise BadPicture(f"{describe(content)}, and no picture that can be read") from None
    width, height = picture.size
    if width * height > max_pixels:
        raise BadPicture(f"{_name(picture)}: over the limit of {max_pixels:,} pixels")
    resized = shape.resized(width, height)
    if resized[0] * resized[1] > max_pixels:
        raise BadPicture(f"{_name(picture)}: {resized[0]:,} x {resized[1]:,} once it is resized, over the limit")
    upright = to_upright_rgb(picture)
    made = upright.resize(shape.resized(*upright.size), resample=shape.resample)
    if shape.crop_width:
        left, top = (made.width - shape.crop_width) // 2, (made.height - shape.crop_height) // 2
        # What is outside is black, as transformers pads.
        made = made.crop((left, top, left + shape.crop_width, top + shape.crop_height))
    return made.tobytes()


def to_upright_rgb(picture: Image.Image) -> Image.Image:
    """The first frame, turned as its EXIF says, in 8 bits of red, green and blue; what is transparent is on white."""
    from PIL import Image, ImageOps

    picture.load()
    picture = ImageOps.exif_transpose(picture)
    if picture.mode == "F":
        raise BadPicture(f"{_name(picture)} has pixels with fractions, whose range is not known")
    if picture.mode in _SIXTEEN_BITS:
        picture = picture.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if "A" in picture.getbands() or picture.info.get("transparency") is not None:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, _WHITE), picture)
    return picture.convert("RGB")


def describe(content: bytes) -> str:
    """What bytes are by their beginning, and how many; nothing is decoded.

    >>> describe(b"<!DOCTYPE html><title>404</title>")
    'an HTML page of 33 bytes'
    """
    head = content[:_HEAD_BYTES].lower()
    marked = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    kind = next((name for start, name in _KINDS if head.startswith(start) or marked.startswith(start)), "")
    if marked.startswith((b"<svg", b"<?xml", b"<!--")):
        kind = "an SVG drawing" if b"<svg" in marked else "XML"
    if head.startswith(b"riff") and head[8:12] == b"webp":
        kind = "a WebP"
    size = f"{len(content):,} bytes"
    return f"{kind} of {size}" if kind else f"{size} that begin with {content[:8].hex(' ')}"


def _open(content: bytes) -> Image.Image:
    from PIL import Image

    Image.init()
    return Image.open(io.BytesIO(content), formats=[name for name in _FORMATS if name in Image.OPEN])


def _describe_picture(content: bytes) -> str:
    """The same, with the size in pixels if its head can be read."""
    try:
        return f"{_name(_open(content))} in {len(content):,} bytes"
    except Exception:
        return describe(content)


def _name(picture: Image.Image) -> str:
    return f"{picture.format or 'a picture'} of {picture.width:,} x {picture.height:,} pixels"
