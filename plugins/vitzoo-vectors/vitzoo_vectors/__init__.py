"""The command `vitzoo check-vectors`: which network stored vectors are from; torch-free."""

__version__ = "0.1.0"

from vitzoo_vectors.check import Checked as Checked, check_vectors as check_vectors
from vitzoo_vectors.files import write_sidecar as write_sidecar
