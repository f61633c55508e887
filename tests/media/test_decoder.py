"""Decoding in a child process: the results, and that invalid input is a cheap 400."""

from __future__ import annotations

import io
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
import wave
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image, ImageFile

from llamasrv.errors import InvalidMedia
from llamasrv.media import pictures, sniff
from llamasrv.media.decoder import Decoder
from llamasrv.media.limits import MediaLimits
from llamasrv.media.pictures import DecodeError


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    decoder = Decoder()
    yield decoder
    decoder.close()


def picture(image: Image.Image, form: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def tone(seconds: float, rate: int = 16_000, channels: int = 1) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        wavelike = (np.sin(np.arange(int(seconds * rate)) * 0.3) * 12_000).astype(np.int16)
        file.writeframes(np.repeat(wavelike, channels).tobytes())
    return out.getvalue()


def pixels_of(decoder: Decoder, data: bytes, **options: bool) -> np.ndarray:
    width, height, raw = decoder.pixels(data, **options)
    return np.frombuffer(raw, np.uint8).reshape(height, width, 3)


def huge_png(width: int, height: int) -> bytes:
    """A header that claims a large size, with nothing behind it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


RED = Image.new("RGB", (30, 20), (255, 0, 0))


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP"])
def test_a_lossless_picture_keeps_its_colours(decoder: Decoder, form: str) -> None:
    pixels = pixels_of(decoder, picture(RED, form, **({"lossless": True} if form == "WEBP" else {})))
    assert pixels.shape == (20, 30, 3) and pixels.dtype == np.uint8
    assert (pixels == (255, 0, 0)).all()


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_becomes_rgb(decoder: Decoder, mode: str) -> None:
    assert pixels_of(decoder, picture(RED.convert(mode), "JPEG")).shape == (20, 30, 3)


def test_sixteen_bits_of_grey_are_scaled(decoder: Decoder) -> None:
    grey = Image.fromarray(np.full((4, 4), 0x8000, np.uint16))
    assert (pixels_of(decoder, picture(grey, "PNG")) == 0x80).all()


def test_transparency_becomes_white(decoder: Decoder) -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert (pixels_of(decoder, picture(clear, "PNG")) == 255).all()
    palette = clear.convert("P")
    assert (pixels_of(decoder, picture(palette, "GIF", transparency=palette.getpixel((0, 0)))) == 255).all()


def test_a_turned_photo_stands_upright(decoder: Decoder) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    data = picture(RED, "JPEG", exif=exif)
    assert pixels_of(decoder, data).shape == (30, 20, 3)
    assert decoder.size(data) == (20, 30)


def test_an_animation_becomes_its_first_frame(decoder: Decoder) -> None:
    data = picture(RED, "GIF", save_all=True, append_images=[Image.new("RGB", (30, 20), (0, 0, 255))])
    assert (pixels_of(decoder, data) == (255, 0, 0)).all()


def test_an_image_larger_than_any_projector_uses_is_reduced(decoder: Decoder) -> None:
    large = Image.new("RGB", (4000, 3000), (0, 200, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = picture(large, "JPEG", exif=exif)
    pixels = pixels_of(decoder, data)
    assert pixels.shape[0] > pixels.shape[1] and 8_000_000 < pixels.shape[0] * pixels.shape[1] <= 8_400_000
    assert decoder.size(data) == (pixels.shape[1], pixels.shape[0])


def test_an_image_with_low_detail_is_reduced(decoder: Decoder) -> None:
    data = picture(Image.new("RGB", (1000, 500), (255, 0, 0)), "PNG")
    assert decoder.size(data, is_coarse=True) == (512, 256)
    pixels = pixels_of(decoder, data, is_coarse=True)
    assert pixels.shape == (256, 512, 3) and (pixels == (255, 0, 0)).all()
    assert pixels_of(decoder, picture(RED, "PNG"), is_coarse=True).shape == (20, 30, 3)


def test_the_size_needs_no_pixels(decoder: Decoder) -> None:
    assert decoder.size(huge_png(2000, 3000)) == (2000, 3000)


def test_sound_becomes_mono_at_the_requested_rate(decoder: Decoder) -> None:
    samples = np.frombuffer(decoder.samples(tone(0.5, rate=8000, channels=2), 16_000), np.float32)
    assert abs(len(samples) - 8000) < 50
    assert 0.3 < float(np.abs(samples).max()) < 0.45


HOSTILE = {
    "nothing": b"",
    "text": b"Hello, I am a picture.",
    "a TIFF": b"II*\0" + b"\1" * 64,
    "an SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "too many pixels": huge_png(60_000, 60_000),
    "more pixels than an int holds": huge_png(65_535, 65_535),
    "thin": huge_png(20_000, 30),
    "no pixels": huge_png(0, 10),
    "a header without an image": huge_png(500, 500),
    "half a JPEG": picture(Image.effect_noise((400, 400), 90).convert("RGB"), "JPEG")[:4000],
    "half a PNG": picture(Image.effect_noise((400, 400), 90), "PNG")[:4000],
    "half a WebP": picture(Image.effect_noise((400, 400), 90).convert("RGB"), "WEBP")[:2000],
    "a sound": tone(0.1),
}


def test_a_socket_that_does_not_block_the_server_does_block_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gevent makes them. The child ended where it would have waited: amid a long file, and between two."""

    def pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        return ours, theirs

    monkeypatch.setattr("llamasrv.media.decoder.socketpair", pair)
    data = tone(60.0, rate=16_000)
    decoder = Decoder()
    try:
        for _ in range(3):
            assert len(decoder.samples(data, 16_000)) == 4 * 60 * 16_000
        assert len(decoder._idle) == 1 and decoder._idle[0].is_alive
    finally:
        decoder.close()


@pytest.mark.parametrize("what", HOSTILE)
def test_an_invalid_picture_is_refused_quickly(decoder: Decoder, what: str) -> None:
    decoder.pixels(picture(RED, "PNG"))  # a child is there
    begun = time.process_time()
    with pytest.raises(InvalidMedia):
        decoder.pixels(HOSTILE[what])
    assert time.process_time() - begun < 0.2


NEVER_UNPACKED = (
    "too many pixels",
    "more pixels than an int holds",
    "thin",
    "no pixels",
    "half a PNG",
    "a TIFF",
    "nothing",
)


@pytest.mark.parametrize("what", NEVER_UNPACKED)
def test_size_and_truncation_are_checked_before_unpacking(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated PNG of 49 million pixels took half a second: it was unpacked up to the cut."""
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was unpacked"))
    with pytest.raises(DecodeError):
        pictures.pixels(HOSTILE[what], MediaLimits())


def test_a_png_without_trailing_bytes_is_complete(decoder: Decoder) -> None:
    data = picture(RED, "PNG")
    assert pixels_of(decoder, data + b"what a program left behind").shape == (20, 30, 3)


def test_a_flac_that_claims_more_than_it_has_is_harmless(decoder: Decoder) -> None:
    """Its header says 2**36 samples; the library's own reader allocates them and ends the process."""
    info = struct.pack(">HH", 4096, 4096) + b"\0" * 6
    info += ((16_000 << 44) | (0 << 41) | (15 << 36) | ((1 << 36) - 1)).to_bytes(8, "big") + b"\0" * 16
    data = b"fLaC" + b"\x80" + len(info).to_bytes(3, "big") + info
    with pytest.raises(InvalidMedia):
        decoder.samples(data, 16_000)


@pytest.mark.parametrize(
    "data", [tone(0.1)[:44], tone(0.00006), b"fLaC" + b"\0" * 64, b"ID3" + b"\xff" * 400, b"OggS" * 9]
)
def test_an_invalid_sound_is_refused(decoder: Decoder, data: bytes) -> None:
    with pytest.raises(InvalidMedia):
        decoder.samples(data, 16_000)


def test_a_long_sound_is_refused_while_reading() -> None:
    decoder = Decoder(MediaLimits(audio_seconds=1.0))
    try:
        with pytest.raises(InvalidMedia, match="longer than 1 s"):
            decoder.samples(tone(1.5), 16_000)
    finally:
        decoder.close()


def test_damaged_bytes_are_always_refused_cleanly(decoder: Decoder) -> None:
    rng = random.Random(1)
    good = [
        picture(Image.effect_noise((64, 64), 90).convert("RGB"), form) for form in ("PNG", "JPEG", "GIF", "WEBP", "BMP")
    ]
    for _ in range(300):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 12)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert pixels_of(decoder, bytes(data)).shape[2] == 3
        except InvalidMedia:
            pass


def test_a_decoder_that_takes_too_much_memory_is_refused_and_replaced() -> None:
    decoder = Decoder(MediaLimits(pixels=80_000_000, memory=450 << 20))
    try:
        big = picture(Image.new("1", (8_000, 9_000)), "PNG")
        with pytest.raises(InvalidMedia):
            decoder.pixels(big)
        assert pixels_of(decoder, picture(RED, "PNG")).shape == (20, 30, 3)
    finally:
        decoder.close()


def test_a_decoder_that_takes_too_long_is_replaced() -> None:
    decoder = Decoder(MediaLimits(seconds=1e-6))
    try:
        with pytest.raises(InvalidMedia, match="took more than"):
            decoder.pixels(picture(RED, "PNG"))
    finally:
        decoder.close()


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "import os; from llamasrv.media.decoder import Decoder\n"
        "d = Decoder(); b = bytes.fromhex(os.environ['DATA']); d.pixels(b)\n"
        "print(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read(), flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DATA": picture(RED, "PNG").hex()},
        capture_output=True,
        check=True,
    )
    pid = int(done.stdout)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        if open(f"/proc/{pid}/stat").read().split()[2] == "Z":
            break
    else:
        pytest.fail("the child lives on")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"RIFF\0\0\0\0WEBP", "webp"),
        (b"RIFF\0\0\0\0WAVE", "wav"),
        (b"\xff\xfb\x90\0", "mp3"),
        (b"\0\0\0\x20ftypM4A ", "mp4"),
        (b"RIFF\0\0\0\0AVI ", None),
        (b"\xff\xff", None),
        (b"", None),
    ],
)
def test_the_first_bytes_identify_the_kind(data: bytes, kind: str | None) -> None:
    assert sniff.kind(data) == kind


def test_an_orphaned_child_ends_at_its_cpu_limit() -> None:
    """The limit is per request: an old child is not killed for its earlier work."""
    script = """
        import time
        from llamasrv.media.child import bound_time
        def work(seconds):
            end = time.process_time() + seconds
            while time.process_time() < end: pass
        for _ in range(2):
            bound_time(0.1)
            work(1)
        print("lived", flush=True)
        bound_time(0.1)
        work(60)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, timeout=60)
    assert done.stdout == b"lived\n" and done.returncode == -signal.SIGXCPU
