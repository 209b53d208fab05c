"""Whether text in one colour is legible on another."""

import numpy as np


def contrast(a, b):
    """The contrast of two colours (red, green and blue from 0 to 1) as defined by WCAG 2."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour):
    c = np.asarray(colour)[:3]
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return linear @ (0.2126, 0.7152, 0.0722)
