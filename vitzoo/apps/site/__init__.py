"""`vitzoo site`: a static web site that shows every registered network; torch-free."""

TITLE = "Vision Transformers"  # of a catalogue, unless its writer chooses another
