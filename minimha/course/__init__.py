"""The tour and the chapters, which the command `minimha` runs and opens."""

__all__ = ["chapters", "tour"]
