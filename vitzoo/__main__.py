"""`vitzoo` and `python -m vitzoo`."""

import sys

try:
    from vitzoo.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)  # `ExitCode.INTERRUPTED`

if __name__ == "__main__":
    sys.exit(main())
