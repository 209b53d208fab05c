raise SystemExit("this is not minimha")
