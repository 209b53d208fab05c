raise SystemExit("this is not NumPy")
