"""``trine`` and ``python -m trine``: run the command line, and end in one line also where its imports are cut short."""

import os
import sys
from contextlib import suppress


def main() -> None:
    """Run the command line; Ctrl-C exits with 130 and a lack of memory with 1, both without a traceback."""
    try:
        import trine.common.lack_of_memory as memory  # first, since a failure below asks it
        from trine.cli.main import main as run

        run()
    except KeyboardInterrupt:
        _leave("interrupted", 130)
    except MemoryError:
        _leave("error: out of memory", 1)
    except ImportError as error:  # a shared library that did not fit into memory, or a broken installation
        _leave(f"error: trine cannot be started: {' '.join(str(error).split())[:300]}", 1)
    except Exception as error:
        if not memory.lacks_memory(error):
            raise
        _leave("error: out of memory", 1)


def _leave(message: str, code: int) -> None:
    """Print what is buffered and a last line, and end here: tidying up may fail as well."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"{message}\n")):
        with suppress(OSError, ValueError, MemoryError):
            stream.write(text)
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
