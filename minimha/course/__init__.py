"""The tour and the chapters, as the command `minimha` hands them out."""

__all__ = ["chapters", "tour"]
