"""The command `minimha gpu-report`: what a GPU computes, how exactly and how fast."""
