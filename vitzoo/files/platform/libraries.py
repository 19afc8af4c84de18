"""What shared libraries of other packages tell about themselves."""

from __future__ import annotations

import ctypes
from pathlib import Path


def cublas_version(torch_file: str, cuda: str) -> str:
    """Return the version of the cuBLAS that torch calls, such as `13.4.1`; empty if unknown.

    Args:
        torch_file: path of torch's `__init__.py`.
        cuda: version of CUDA that torch was built for, such as `13.2`.
    """
    library = Path(torch_file).parent / "lib" / "libtorch_cuda.so"
    # The names that torch's library sees; on Windows, where no library hands on others, its name.
    for name in (str(library), f"cublas64_{cuda.partition('.')[0]}.dll"):
        number, found = ctypes.c_int(), list[str]()
        try:
            read = ctypes.CDLL(name).cublasGetProperty
        except (OSError, AttributeError):
            continue
        for part in range(3):
            read(part, ctypes.byref(number))
            found.append(str(number.value))
        return ".".join(found)
    return ""
