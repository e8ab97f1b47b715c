"""Small synthetic images."""

import numpy as np


def quarters(height: int = 40, width: int = 60, noise: float = 10.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four coloured quarters with noise, and their numbers."""
    labels = np.zeros((height, width), dtype=np.int64)
    labels[height // 2 :] += 2
    labels[:, width // 2 :] += 1
    colours = np.array([[200, 40, 40], [40, 160, 60], [40, 60, 200], [220, 220, 210]], dtype=float)
    drawn = colours[labels] + noise * np.random.default_rng(seed).standard_normal((height, width, 3))
    return np.clip(drawn, 0, 255).astype(np.uint8), labels
