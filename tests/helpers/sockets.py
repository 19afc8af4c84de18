"""A hook that sees the sockets of all interpreters: `from sockets import WATCH`."""

# Loaded by every interpreter that is started with its folder on PYTHONPATH. It lets one address
# through if ALLOWED names it, and writes every event to a file.
WATCH = """
import os, sys

def watch(event, args):
    if event.startswith("socket.") and event not in ("socket.gethostname", "socket.gethostbyaddr"):
        known = os.environ.get("ALLOWED", "")
        place = [a for a in args if isinstance(a, (tuple, str, int, bytes))]
        place = place[0] if place and isinstance(place[0], tuple) else tuple(place[:2])
        passes = event in ("socket.__new__", "socket.bind") or f"{place[0]}:{place[1]}" == known
        line = f"{os.environ.get('CALL')} {event} {place if event != 'socket.__new__' else ''}\\n"
        descriptor = os.open(os.environ["SOCKETS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)
        if not (known and passes):
            raise OSError(f"{event} is forbidden by the test")

sys.addaudithook(watch)
"""
