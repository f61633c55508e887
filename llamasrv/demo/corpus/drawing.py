"""Pictures that a program draws: one coloured thing on plain ground.

Owns what can be drawn and how: shapes, digits and letters, their colours, sizes, places and turns. Pillow draws. Knows
nothing of what is asked about a picture.
"""

import colorsys
import math

from PIL import Image, ImageDraw, ImageFont

# (hue in degrees, saturation, value): the range of each, wide enough for what people call so
COLOURS = {
    "red": ((-10, 8), (0.75, 1), (0.7, 1)),
    "orange": ((24, 37), (0.85, 1), (0.9, 1)),
    "yellow": ((52, 62), (0.75, 1), (0.9, 1)),
    "green": ((95, 150), (0.6, 1), (0.4, 0.95)),
    "blue": ((205, 242), (0.7, 1), (0.55, 1)),
    "purple": ((268, 292), (0.6, 1), (0.4, 0.85)),
    "pink": ((318, 345), (0.3, 0.65), (0.95, 1)),
    "brown": ((14, 32), (0.6, 0.95), (0.28, 0.52)),
    "black": ((0, 360), (0, 0.2), (0, 0.1)),
    "white": ((0, 360), (0, 0.03), (0.96, 1)),
    "grey": ((0, 360), (0, 0.06), (0.4, 0.66)),
}
SHAPES = ("circle", "square", "triangle", "star", "rectangle", "diamond", "heart", "cross")
DIGITS = tuple("0123456789")
LETTERS = tuple("ABCEHTX")
THINGS = SHAPES + DIGITS + LETTERS

# What may stand on what: each is seen well on these.
_GROUNDS = {
    "dark": ("white",) * 6 + ("yellow", "grey", "pink"),
    "bright": ("white",) * 6 + ("black",) * 3 + ("blue", "purple", "grey"),
    "white": ("black",) * 4 + ("blue", "red", "green", "purple", "grey"),
}
_SHADE = {"black": "dark", "brown": "dark", "purple": "dark", "blue": "dark", "white": "white"}


def draw_picture(d, colour, thing):
    """An image in RGB of 64 to 256 pixels a side, drawn with the choices of `d`."""
    small = d.between(64, 128)
    width, height = d.any(
        ((small, small), (small, small), (small * 4 // 3, small), (small, small * 4 // 3), (small * 2, small))
    )
    ground = d.any(tuple(g for g in _GROUNDS[_SHADE.get(colour, "bright")] if g != colour))
    image = Image.new("RGB", (width, height), shade(d, ground))
    size = min(width, height) * (0.45 + 0.5 * d.rng.random())
    mask = _upright(d, _glyph(d, thing) if thing not in SHAPES else _shape(d, thing), thing)
    scale = size / max(mask.size)
    mask = mask.resize([max(1, round(side * scale)) for side in mask.size], Image.Resampling.BILINEAR, reducing_gap=2)
    left, top = ((room - side) * d.rng.random() for room, side in zip(image.size, mask.size, strict=True))
    image.paste(shade(d, colour), (round(left), round(top)), mask)
    return image


def shade(d, colour):
    """One of the shades of this name, in RGB."""
    if colour in ("white", "black", "grey") and d.chance(0.6):
        return {"white": (255,) * 3, "black": (0,) * 3, "grey": (128,) * 3}[colour]
    hue, saturation, value = (low + (high - low) * d.rng.random() for low, high in COLOURS[colour])
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value))


def _shape(d, shape):
    """A mask of the shape, turned by some angle, as large as fits."""
    side = 96
    mask = Image.new("L", (side, side))
    points = _outline(d, shape)
    turn = math.radians(
        360 * d.rng.random() if shape in ("triangle", "star") and d.chance(0.4) else 16 * (d.rng.random() - 0.5)
    )
    turned = [(x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)) for x, y in points]
    on = [((0.5 + 0.34 * x) * side, (0.5 + 0.34 * y) * side) for x, y in turned]
    pen = ImageDraw.Draw(mask)
    if d.chance(0.25):
        pen.line([*on, *on[:2]], fill=255, width=d.between(5, 10), joint="curve")
    else:
        pen.polygon(on, fill=255)
    return mask


def _outline(d, shape):
    """The corners around (0, 0), at a distance of at most about 1."""
    if shape == "circle":
        return _round(48, lambda angle: 1)
    if shape == "star":
        inner = 0.38 + 0.1 * d.rng.random()
        return [(r * math.sin(i * math.pi / 5), -r * math.cos(i * math.pi / 5)) for i, r in enumerate((1, inner) * 5)]
    if shape == "triangle":
        half, tip = 0.75 + 0.25 * d.rng.random(), 0.4 * (d.rng.random() - 0.5)
        return [(tip, -0.9), (half, 0.7), (-half, 0.7)]
    if shape == "heart":
        return [(x / 17, (y + 2.5) / -17) for x, y in map(_heart, range(48))]
    if shape == "cross":
        arm = 0.22 + 0.16 * d.rng.random()
        quarter = ((arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm), (arm, 1))
        return [*quarter, *((-x, -y) for x, y in quarter)]
    if shape == "diamond":
        narrow = 0.6 + 0.4 * d.rng.random()
        return [(0, -1), (narrow, 0), (0, 1), (-narrow, 0)]
    low = 0.35 + 0.27 * d.rng.random() if shape == "rectangle" else 0.97 + 0.06 * d.rng.random()
    x, y = (1, low) if d.chance(0.65) else (low, 1)
    return [(-x, -y), (x, -y), (x, y), (-x, y)]


def _round(count, radius):
    angles = [2 * math.pi * i / count for i in range(count)]
    return [(radius(a) * math.cos(a), radius(a) * math.sin(a)) for a in angles]


def _heart(step):
    t = 2 * math.pi * step / 48
    return 16 * math.sin(t) ** 3, 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)


_FONTS = {}


def _glyph(d, character):
    """A mask of the character: thin or fat, narrow or wide, a little slanted and turned."""
    font = _FONTS.setdefault("font", ImageFont.load_default(72))
    fat = d.between(0, 5)
    left, top, right, bottom = font.getbbox(character, stroke_width=fat)
    mask = Image.new("L", (right - left + 40, bottom - top + 24))
    ImageDraw.Draw(mask).text((20 - left, 12 - top), character, fill=255, font=font, stroke_width=fat)
    slant = 0.3 * (d.rng.random() - 0.5)
    mask = mask.transform(
        mask.size, Image.Transform.AFFINE, (1, slant, -slant * mask.height / 2, 0, 1, 0), Image.Resampling.BILINEAR
    )
    mask = mask.rotate(16 * (d.rng.random() - 0.5), Image.Resampling.BILINEAR)
    return mask.resize((round(mask.width * (0.75 + 0.6 * d.rng.random())), mask.height))


def _upright(d, mask, thing):
    """Without the empty rim, so that the character may touch the very edge."""
    return mask.crop(mask.getbbox())
