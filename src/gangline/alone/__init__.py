"""A gang that no server looks after: whoever starts it follows it to its end.

For places where one process is all there is, such as the container of a pipeline's step. The standard library alone,
as such a container has Python, and of Gangline what was shipped into it.
"""

from __future__ import annotations

from gangline.alone.ended import Ended, read_end
from gangline.alone.gang import Gang, Plan

__all__ = ["Ended", "Gang", "Plan", "read_end"]
