"""An episode as a moving picture: the screen, and under it what the agent thought of it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from ube.errors import UsageError
from ube.files import write_atomically

FRAMES_PER_SECOND = 15
"""Of the game itself: 60 frames a second, four for each decision."""
STRIP = 90
"""Pixels under the screen."""
LINES = {"√u": (0, 158, 115), "max Q": (86, 180, 233)}


class Watched(NamedTuple):
    """An episode, decision by decision."""

    screens: Iterable[np.ndarray]  # T times (height, width, 3)
    u: np.ndarray  # (T,) of the action taken
    q: np.ndarray  # (T,) largest


def write_video(watched: Watched, path: Path) -> None:
    """A GIF. Each line has its own scale, from its lowest to its highest value, printed beside it."""
    if path.suffix.lower() != ".gif":
        raise UsageError(f"{path}: a video ends in .gif")
    curves = {"√u": np.sqrt(np.maximum(watched.u, 0.0)), "max Q": watched.q}
    curves = {name: values for name, values in curves.items() if np.ptp(values) > 0}
    pictures = [_picture(screen, curves, t) for t, screen in enumerate(watched.screens)]
    content = io.BytesIO()
    pictures[0].save(
        content, "GIF", save_all=True, append_images=pictures[1:], duration=1000 // FRAMES_PER_SECOND, loop=0
    )
    write_atomically(path, content.getvalue())


def _picture(screen: np.ndarray, curves: dict[str, np.ndarray], now: int) -> Image.Image:
    scale = max(1, round(320 / screen.shape[1]))
    height, width = screen.shape[0] * scale, screen.shape[1] * scale
    picture = Image.new("RGB", (width, height + STRIP), (20, 20, 20))
    picture.paste(Image.fromarray(screen).resize((width, height), Image.Resampling.NEAREST), (0, 0))
    draw = ImageDraw.Draw(picture)
    font = ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 11)  # it has a √
    for row, (name, values) in enumerate(curves.items()):
        low, high = float(values.min()), float(values.max())
        x = np.arange(len(values)) * (width - 1) / max(len(values) - 1, 1)
        y = height + STRIP - 6 - (values - low) / (high - low) * (STRIP - 34)
        points = list(zip(x.tolist(), y.tolist(), strict=True))
        draw.line(points, fill=tuple(channel // 3 for channel in LINES[name]))
        draw.line(points[: now + 1], fill=LINES[name], width=2)
        words = f"{name} {values[now]:.3g} ({low:.2g}..{high:.2g})"
        draw.text((4 + row * width // 2, height + 4), words, fill=LINES[name], font=font)
    return picture.quantize(64)
