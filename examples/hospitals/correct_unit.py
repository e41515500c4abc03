"""Convert the creatinine of a file from micromoles per litre to milligrams per decilitre: correct_unit.py FILE"""

import sys

import pandas as pd
from make_data import MICROMOLES

frame = pd.read_csv(sys.argv[1])
frame["creatinine"] = (frame["creatinine"] / MICROMOLES).round(2)
frame.to_csv(sys.argv[1], index=False)
print(f"{sys.argv[1]}: creatinine is now in milligrams per decilitre")
