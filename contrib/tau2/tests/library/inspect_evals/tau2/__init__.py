raise ImportError("nothing imports this: it stands for what the real package imports")
