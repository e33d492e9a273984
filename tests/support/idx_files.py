"""Files in MNIST's format, which the experiments read."""

import struct

import numpy as np


def idx(images: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, images.ndim]) + struct.pack(f">{images.ndim}I", *images.shape)
    return header + images.tobytes()
