"""The tour and the chapters, which the command `minimha` runs and copies."""

__all__ = ["chapters", "tour"]
