"""The command `vitzoo site`: a static web site that shows every registered network; torch-free."""

__version__ = "0.1.0"

TITLE = "Vision Transformers"  # of a catalogue, unless its writer chooses another

from vitzoo_site.site import Site as Site, write_site as write_site  # noqa: E402  # needs TITLE
