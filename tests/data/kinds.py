"""Images of every kind that people have, with what a person would see in each."""

import io
import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

WHITE = 255
# Upright: red, green, blue and yellow quarters; no two turns of it look alike.
UPRIGHT: Pixels = np.zeros((32, 48, 3), dtype=np.uint8)
UPRIGHT[:16, :24] = (220, 30, 40)
UPRIGHT[:16, 24:] = (30, 180, 60)
UPRIGHT[16:, :24] = (40, 60, 200)
UPRIGHT[16:, 24:] = (230, 210, 50)

# How a camera that was held that way has stored the upright scene.
STORED = {
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: np.rot90(UPRIGHT, 1),
    7: UPRIGHT[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90(UPRIGHT, -1),
}


def saved(pixels: Pixels, kind: str, mode: str | None = None, **options: object) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if mode is not None:
        image = image.convert(mode)
    return written(image, kind, **options)


def written(image: Image.Image, kind: str, **options: object) -> bytes:
    output = io.BytesIO()
    image.save(output, format=kind, **options)
    return output.getvalue()


def turned(number: int, kind: str = "JPEG", **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = number
    return saved(STORED[number], kind, exif=exif, **options)


def chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def png(rows: list[bytes], width: int, depth: int, color: int, extra: bytes = b"") -> bytes:
    """A PNG written by hand, for the kinds that Pillow cannot write."""
    header = struct.pack(">IIBBBBB", width, len(rows), depth, color, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


def wide(values: NDArray[np.integer]) -> list[bytes]:
    return [row.astype(">u2").tobytes() for row in values]


def bomb(side: int) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9))


RAMP16 = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (8, 1))
RAMP8 = np.repeat(np.rint(RAMP16 / 257).astype(np.uint8)[:, :, None], 3, axis=2)
GRAY = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (8, 1))
GRAY3 = np.repeat(GRAY[:, :, None], 3, axis=2)
HALF = np.full((32, 48), 128, dtype=np.uint8)
HALF[:, 24:] = 0  # the left half half-transparent, the right half wholly


def on_white(pixels: Pixels, alpha: Pixels) -> Pixels:
    share = alpha[:, :, None] / 255
    return np.rint(pixels * share + WHITE * (1 - share)).astype(np.uint8)


RGBA = np.dstack([UPRIGHT, HALF])
GRAY_ALPHA = np.dstack([GRAY, np.where(GRAY > 100, 0, 255).astype(np.uint8)])
GRAY_ALPHA_SEEN = np.where((GRAY > 100)[:, :, None], WHITE, GRAY3).astype(np.uint8)
CMYK = np.zeros((8, 8, 4), dtype=np.uint8)
CMYK[:4, :, 0] = 255  # cyan above, magenta below
CMYK[4:, :, 1] = 255
CMYK_SEEN = np.zeros((8, 8, 3), dtype=np.uint8)
CMYK_SEEN[:4] = (0, 255, 255)
CMYK_SEEN[4:] = (255, 0, 255)
BITS = np.indices((8, 16)).sum(0) % 2 == 0
BITS_SEEN = np.repeat((BITS * 255).astype(np.uint8)[:, :, None], 3, axis=2)


def palette(transparent: bool) -> bytes:
    image = Image.new("P", (16, 8), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (8, 0, 16, 8))
    return written(image, "PNG", transparency=0) if transparent else written(image, "PNG")


PALETTE_SEEN = np.full((8, 16, 3), (10, 20, 30), dtype=np.uint8)
PALETTE_SEEN[:, 8:] = (200, 100, 50)
PALETTE_CLEAR = PALETTE_SEEN.copy()
PALETTE_CLEAR[:, :8] = WHITE


def animated(kind: str, **options: object) -> bytes:
    first = Image.fromarray(UPRIGHT)
    rest = [Image.fromarray(255 - UPRIGHT)]
    return written(first, kind, save_all=True, append_images=rest, **options)


def damaged_exif() -> bytes:
    return saved(
        UPRIGHT,
        "JPEG",
        quality=95,
        subsampling=0,
        exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + b"\1" * 20,
    )


def jpeg(**options: object) -> bytes:
    return saved(UPRIGHT, "JPEG", quality=95, **options)


def flipped_bit(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 0xFF
    return bytes(changed)


def with_color_key(rows: list[bytes], width: int, color: int, key: bytes) -> bytes:
    return png(rows, width, 8, color, chunk(b"tRNS", key))


KEYED = np.where((UPRIGHT[0, 0] == UPRIGHT).all(axis=2)[:, :, None], WHITE, UPRIGHT)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)

# name -> (bytes, pixels as a person sees them, how far a lossy format may be off)
SEEN: dict[str, tuple[bytes, Pixels, int]] = {
    **{f"EXIF turn {n}": (turned(n, quality=95, subsampling=0), UPRIGHT, 12) for n in range(1, 9)},
    "EXIF turn in PNG": (turned(6, "PNG"), UPRIGHT, 0),
    "EXIF turn in WebP": (turned(8, "WEBP", lossless=True), UPRIGHT, 0),
    "EXIF turn in TIFF": (turned(3, "TIFF"), UPRIGHT, 0),
    "EXIF damaged": (damaged_exif(), UPRIGHT, 12),
    "16-bit gray PNG": (png(wide(RAMP16), 64, 16, 0), RAMP8, 1),
    "16-bit gray TIFF": (written(Image.fromarray(RAMP16), "TIFF"), RAMP8, 1),
    "16-bit RGB PNG": (png(wide(np.repeat(RAMP16, 3, axis=1)), 64, 16, 2), RAMP8, 1),
    "16-bit RGBA PNG": (
        png(
            wide(np.dstack([RAMP16] * 3 + [np.full_like(RAMP16, 65535)]).reshape(8, -1)), 64, 16, 6
        ),
        RAMP8,
        1,
    ),
    "16-bit gray and alpha PNG": (
        png(wide(np.dstack([RAMP16, np.full_like(RAMP16, 65535)]).reshape(8, -1)), 64, 16, 4),
        RAMP8,
        1,
    ),
    "CMYK JPEG": (written(Image.frombytes("CMYK", (8, 8), CMYK.tobytes()), "JPEG"), CMYK_SEEN, 12),
    "CMYK TIFF": (written(Image.frombytes("CMYK", (8, 8), CMYK.tobytes()), "TIFF"), CMYK_SEEN, 0),
    "gray PNG": (written(Image.fromarray(GRAY), "PNG"), GRAY3, 0),
    "gray JPEG": (written(Image.fromarray(GRAY), "JPEG", quality=98), GRAY3, 6),
    "gray with alpha": (
        written(Image.frombytes("LA", (64, 8), GRAY_ALPHA.tobytes()), "PNG"),
        GRAY_ALPHA_SEEN,
        0,
    ),
    "gray with a transparent value": (
        with_color_key([row.tobytes() for row in GRAY], 64, 0, struct.pack(">H", 0)),
        np.where((GRAY == 0)[:, :, None], WHITE, GRAY3).astype(np.uint8),
        0,
    ),
    "palette": (palette(False), PALETTE_SEEN, 0),
    "palette with transparency": (palette(True), PALETTE_CLEAR, 0),
    "1-bit PNG": (written(Image.fromarray(BITS), "PNG"), BITS_SEEN, 0),
    "1-bit TIFF": (written(Image.fromarray(BITS), "TIFF", compression="group4"), BITS_SEEN, 0),
    "RGB PNG": (saved(UPRIGHT, "PNG"), UPRIGHT, 0),
    "RGBA PNG": (saved(RGBA, "PNG"), on_white(UPRIGHT, HALF), 1),
    "RGBA WebP": (saved(RGBA, "WEBP", lossless=True, exact=True), on_white(UPRIGHT, HALF), 1),
    "RGBA TIFF": (saved(RGBA, "TIFF"), on_white(UPRIGHT, HALF), 1),
    "RGB with a transparent color": (
        with_color_key(
            [row.tobytes() for row in UPRIGHT], 48, 2, struct.pack(">HHH", *UPRIGHT[0, 0].tolist())
        ),
        KEYED,
        0,
    ),
    "GIF": (saved(UPRIGHT, "GIF"), UPRIGHT, 0),
    "GIF animated": (animated("GIF", duration=50), UPRIGHT, 0),
    "GIF transparent": (
        written(Image.fromarray(RGBA.copy()).convert("RGBA"), "GIF"),
        np.concatenate([UPRIGHT[:, :24], np.full((32, 24, 3), WHITE, np.uint8)], axis=1),
        1,
    ),
    "PNG animated": (animated("PNG"), UPRIGHT, 0),
    "WebP animated": (animated("WEBP", lossless=True), UPRIGHT, 0),
    "WebP": (saved(GRAY3, "WEBP", quality=95), GRAY3, 8),
    "TIFF of two pages": (animated("TIFF"), UPRIGHT, 0),
    "TIFF with LZW": (saved(UPRIGHT, "TIFF", compression="tiff_lzw"), UPRIGHT, 0),
    "BMP": (saved(UPRIGHT, "BMP"), UPRIGHT, 0),
    "JPEG": (jpeg(subsampling=0), UPRIGHT, 12),
    "JPEG progressive": (jpeg(progressive=True, subsampling=0), UPRIGHT, 12),
    "1 x 1": (saved(UPRIGHT[:1, :1], "PNG"), UPRIGHT[:1, :1], 0),
    "65500 x 1": (
        saved(np.full((1, 65_500, 3), 77, np.uint8), "JPEG"),
        np.full((1, 65_500, 3), 77, np.uint8),
        2,
    ),
}

# name -> (bytes, what the refusal says)
REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty file"),
    "HTML": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "not an image"),
    "text": (b"plain words " * 50, "not an image"),
    "zeros": (bytes(5_000), "not an image"),
    "JPEG truncated": (saved(NOISE, "JPEG")[:2_000], "damaged"),
    "PNG truncated": (saved(NOISE, "PNG")[:5_000], "damaged"),
    "GIF truncated": (saved(NOISE, "GIF")[:2_000], "damaged"),
    "WebP truncated": (saved(NOISE, "WEBP")[:1_000], "damaged|not an image"),
    "BMP truncated": (saved(NOISE, "BMP")[:5_000], "damaged"),
    "PNG with a changed byte": (flipped_bit(saved(NOISE, "PNG"), 3_000), "damaged"),
    "JPEG header alone": (saved(NOISE, "JPEG")[:20], "damaged|not an image"),
    "too many pixels": (bomb(9_000), "above 64000000 pixels"),
    "far too many pixels": (bomb(40_000), "above 64000000 pixels"),
    "floating point": (written(Image.new("F", (4, 4), 0.5), "TIFF"), "floating-point"),
    "32-bit gray": (written(Image.new("I", (4, 4), 1 << 20), "TIFF"), "32-bit gray"),
    "icon, not on the list": (written(Image.new("RGB", (16, 16)), "ICO"), "not an image"),
    "PPM, not on the list": (written(Image.new("RGB", (16, 16)), "PPM"), "not an image"),
    "PDF": (b"%PDF-1.4\n1 0 obj\n", "not an image"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
}
