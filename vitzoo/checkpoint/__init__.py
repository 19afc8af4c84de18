"""An open weights file: its container, its format, and the files beside it."""
