"""Strings of digits as somebody says them, made on the spot, and their mel filter banks.

The voices are espeak-ng's where it is installed.  Where it is not they are formants: pulses of a
voice and noise through resonators that move as a mouth does, enough to tell ten words apart.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import signal

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SOURCES = ("espeak", "formants")
BANDS = 40


class Utterance(NamedTuple):
    features: np.ndarray  #: (frames, 40), of mean 0 and standard deviation 1
    digits: list[int]
    speaker: str


class Speaker(NamedTuple):
    name: str  #: espeak-ng's voice and variant, or of formants any
    pitch: float  #: 0 to 1, low to high
    speed: float  #: 0 to 1, slow to fast
    tract: float  #: 0 to 1, long to short, of formants


def source_of(asked: str) -> str:
    """espeak or formants: what was asked for, or with 'auto' what is there."""
    there = shutil.which("espeak-ng") is not None
    if asked == "espeak" and not there:
        raise SystemExit(
            "--voices espeak: there is no espeak-ng on the PATH; install it (apt-get install "
            "espeak-ng, brew install espeak-ng), or choose --voices formants"
        )
    if asked == "auto":
        return "espeak" if there else "formants"
    return asked


def utterances(
    source: str, count: int, *, held_out: bool, seed: int, digits: tuple[int, int] = (3, 7)
) -> Iterator[Utterance]:
    """So many strings of digits; speakers that are held out say no other ones.

    A string has between digits[0] and digits[1] digits, some with a pause between, and stands in
    noise of its own, 10 to 30 dB below it.
    """
    if source not in SOURCES:
        raise ValueError(f"utterances: source is {source!r}; expected one of {SOURCES}")
    if not 1 <= digits[0] <= digits[1]:
        raise ValueError(
            f"utterances: digits is {digits}; expected the least number, from 1, and the greatest"
        )
    rng = np.random.default_rng([seed, held_out])
    known = speakers(source, held_out)
    for _ in range(count):
        speaker = known[rng.integers(len(known))]
        said = rng.integers(0, 10, rng.integers(digits[0], digits[1] + 1)).tolist()
        pauses = rng.random(len(said)) < 0.2
        if source == "espeak":
            wave, rate = _espeak(speaker, said, pauses)
        else:
            wave, rate = _formants(speaker, said, pauses, rng)
        level = wave.std() * 10 ** (-rng.uniform(10, 30) / 20)
        yield Utterance(
            mel(wave + level * rng.standard_normal(len(wave)), rate), said, speaker.name
        )


def speakers(source: str, held_out: bool) -> list[Speaker]:
    """Those of a source who train, or those who are held out: no voice is in both."""
    rng = np.random.default_rng(held_out)
    if source == "formants":
        names = [f"{'held out' if held_out else 'training'} {i}" for i in range(40)]
    else:
        names = [f"{x}+{y}" for x in ACCENTS for y in (HELD_OUT if held_out else VARIANTS)]
    return [Speaker(x, *rng.random(3).tolist()) for x in names]


# --- mel filter banks ---------------------------------------------------------------------


def mel(wave: np.ndarray, rate: int, *, window: float = 0.025, hop: float = 0.010) -> np.ndarray:
    """The logarithm of the energy in 40 bands, (frames, 40), float32, of mean 0 and deviation 1."""
    width, step = round(window * rate), round(hop * rate)
    if len(wave) < width:
        raise ValueError(
            f"mel: wave has {len(wave)} samples; expected at least a window's {width}, {window} s"
        )
    size = 1 << (width - 1).bit_length()
    *_, spectrum = signal.spectrogram(
        wave, rate, "hann", width, width - step, size, detrend=False, scaling="spectrum"
    )
    x = np.log(_bank(rate, size) @ spectrum + 1e-10).T
    return ((x - x.mean()) / x.std()).astype(np.float32)


@cache
def _bank(rate: int, size: int) -> np.ndarray:
    """Triangles of equal width in mel, 60 Hz to 8 kHz at most: (40, size / 2 + 1)."""
    low, high = (2595 * np.log10(1 + x / 700) for x in (60, min(8000, rate / 2)))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    f = np.arange(size // 2 + 1) * rate / size
    rise = (f - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - f) / np.diff(edges)[1:, None]
    return np.clip(np.minimum(rise, fall), 0, None)


# --- espeak-ng ------------------------------------------------------------------------------

ACCENTS = (
    "en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029",
)  # fmt: skip
VARIANTS = ("m1", "m2", "m3", "m4", "m5", "f1", "f2", "f3", "klatt", "klatt2")
HELD_OUT = ("m6", "m7", "f4", "f5", "klatt3")


def _espeak(speaker: Speaker, digits: list[int], pauses: np.ndarray) -> tuple[np.ndarray, int]:
    text = "".join(WORDS[x] + (", " if y else " ") for x, y in zip(digits, pauses, strict=True))
    options = ["-v", speaker.name, "-p", str(round(20 + 60 * speaker.pitch)),
               "-s", str(round(130 + 90 * speaker.speed))]  # fmt: skip
    done = subprocess.run(["espeak-ng", *options, "--stdout", text], capture_output=True)
    if done.returncode or done.stdout[:4] != b"RIFF":
        raise SystemExit(
            f"espeak-ng {' '.join(options)}: {done.stderr.decode(errors='replace').strip()}; "
            "mend its voices (espeak-ng-data), or choose --voices formants"
        )
    rate = int.from_bytes(done.stdout[24:28], "little")
    return np.frombuffer(done.stdout[44:], "<i2").astype(np.float64) / 2**15, rate


# --- formants -------------------------------------------------------------------------------

#: Seconds, the first three formants and the middle of the noise in Hz, and how loud the voice and
#: the noise are.
SOUNDS = {
    "iy": (0.11, 280, 2250, 2900, 0, 1.0, 0.0), "ih": (0.07, 400, 1950, 2550, 0, 1.0, 0.0),
    "eh": (0.09, 550, 1800, 2500, 0, 1.0, 0.0), "ah": (0.10, 650, 1200, 2450, 0, 1.0, 0.0),
    "ao": (0.12, 500, 850, 2450, 0, 1.0, 0.0), "uw": (0.12, 300, 900, 2250, 0, 1.0, 0.0),
    "aa": (0.09, 720, 1150, 2500, 0, 1.0, 0.0), "ow": (0.10, 450, 850, 2350, 0, 1.0, 0.0),
    "r": (0.06, 350, 1150, 1550, 0, 0.7, 0.0), "w": (0.06, 300, 650, 2150, 0, 0.7, 0.0),
    "n": (0.07, 250, 1350, 2350, 0, 0.4, 0.0), "z": (0.08, 280, 1600, 2550, 5200, 0.3, 0.3),
    "v": (0.06, 280, 1150, 2250, 3000, 0.4, 0.1), "s": (0.11, 300, 1600, 2550, 5500, 0.0, 0.5),
    "f": (0.10, 300, 1100, 2250, 3200, 0.0, 0.15), "th": (0.09, 300, 1400, 2550, 4300, 0.0, 0.12),
    "t": (0.03, 300, 1750, 2600, 4500, 0.0, 0.5), "k": (0.03, 300, 1900, 2400, 2200, 0.0, 0.4),
    "-": (0.05, 350, 1500, 2500, 0, 0.0, 0.0), "pause": (0.15, 350, 1500, 2500, 0, 0.0, 0.0),
}  # fmt: skip
SPOKEN = [
    x.split() for x in (
        "z iy r ow uw", "w ah n", "- t uw", "th r iy", "f ao r", "f aa ih v", "s ih - k s",
        "s eh v ah n", "eh iy - t", "n aa ih n",
    )
]  # fmt: skip
RATE, FRAME = 16_000, 80  # samples a second, and samples of one position of the mouth


def _formants(
    speaker: Speaker, digits: list[int], pauses: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Sounds held and glided between, a source of pulses and noise through resonators."""
    sounds = ["pause"]
    for digit, pause in zip(digits, pauses, strict=True):
        sounds += [*SPOKEN[digit], *(["pause"] if pause else [])]
    sounds.append("pause")
    table = np.array([SOUNDS[x] for x in sounds], float)
    ends = (table[:, 0] * (1.3 - 0.6 * speaker.speed) * rng.uniform(0.8, 1.2, len(table))).cumsum()
    middle = ends - np.diff(ends, prepend=0) / 2
    table = table[:, 1:]
    table[:, :3] *= rng.uniform(0.95, 1.05, (len(table), 3)) * (0.85 + 0.35 * speaker.tract)
    at = np.arange(0, ends[-1], FRAME / RATE)
    f1, f2, f3, noise, voiced, rough = (np.interp(at, middle, x) for x in table.T)
    samples = len(at) * FRAME
    pitch = (80 + 150 * speaker.pitch) * (1 + 0.05 * np.sin(np.arange(samples) / RATE * 2 * np.pi))
    pulses = np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0)
    pulses = signal.lfilter([1], [1, -0.9], pulses) + 0.04 * rng.standard_normal(samples)
    hiss = rng.standard_normal(samples)
    wave = pulses * voiced.repeat(FRAME)
    for f, width in ((f1, 80), (f2, 110), (f3, 160)):
        wave = _resonated(wave, f, width)
    hiss = _resonated(hiss * rough.repeat(FRAME), np.maximum(noise, 500), 1200)
    return wave / np.abs(wave).max() + 0.2 * hiss / max(np.abs(hiss).max(), 1e-9), RATE


def _resonated(wave: np.ndarray, frequency: np.ndarray, width: float) -> np.ndarray:
    """A resonator of two poles whose frequency moves, one value every FRAME samples."""
    r, state, out = np.exp(-np.pi * width / RATE), np.zeros(2), np.empty_like(wave)
    for i, f in enumerate(frequency):
        a = [1, -2 * r * np.cos(2 * np.pi * f / RATE), r * r]
        part = slice(i * FRAME, (i + 1) * FRAME)
        out[part], state = signal.lfilter([sum(a)], a, wave[part], zi=state)
    return out
