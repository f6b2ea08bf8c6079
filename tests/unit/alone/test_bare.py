"""A container has Python, and of Gangline what was shipped into it."""

import subprocess
import sys
from pathlib import Path

import gangline

SOURCE = Path(gangline.__file__).parents[1]


def test_a_gang_without_a_server_needs_the_standard_library_alone():
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import gangline.alone; import gangline.client.options"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
