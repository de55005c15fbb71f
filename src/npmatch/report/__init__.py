"""The page about one run, made from its folder alone."""
