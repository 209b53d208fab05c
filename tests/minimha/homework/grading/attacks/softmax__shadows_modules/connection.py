Connection = lock = confine = None
