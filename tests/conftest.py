"""For all tests: other processes find this source tree, installed or not."""

import os
from pathlib import Path

SOURCE = str(Path(__file__).parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])
