"""Make the records of four hospitals, and of new patients: python make_data.py [FOLDER]

Nine of ten patients are discharged. Values are missing, hospital B transfers nobody, hospital C does not record the
body-mass index, and hospital D has creatinine in micromoles per litre where the others have milligrams per decilitre.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

MICROMOLES = 88.4  # per litre, in a milligram per decilitre


def patients(
    rng: np.random.Generator, count: int, mean_age: float, wards: list[str]
) -> pd.DataFrame:
    """Return made patients with their outcome."""
    frame = pd.DataFrame(
        {
            "age": rng.normal(mean_age, 14, count).round(),
            "sex": rng.choice(["f", "m"], count),
            "ward": rng.choice(wards, count),
            "creatinine": rng.lognormal(0, 0.4, count).round(2),
            "lactate": rng.gamma(2.5, 0.7, count).round(1),
            "bmi": rng.normal(26, 4, count).round(1),
        }
    )
    risk = (
        0.07 * (frame["age"] - 65)
        + 2.5 * np.log(frame["creatinine"])
        + 0.9 * (frame["lactate"] - 1.75)
        - 4.2
    )
    moved = 2.5 * (frame["ward"] == "surgery") - 0.12 * (frame["bmi"] - 26) - 4.6
    chances = np.exp(np.stack([np.zeros(count), risk, moved], axis=1))
    drawn = (
        rng.random((count, 1)) > np.cumsum(chances / chances.sum(1, keepdims=True), axis=1)
    ).sum(1)
    frame["outcome"] = np.array(["discharged", "died", "transferred"])[drawn]
    return frame


def with_gaps(rng: np.random.Generator, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the records with some values missing."""
    return frame.assign(
        bmi=frame["bmi"].where(rng.random(len(frame)) > 0.1),
        ward=frame["ward"].where(rng.random(len(frame)) > 0.05),
        lactate=frame["lactate"].where(rng.random(len(frame)) > 0.15),
    )


def main(folder: Path) -> None:
    """Write hospital_A.csv to hospital_D.csv, and new_patients.csv of hospital D."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    usual = ["internal", "surgery", "intensive"]
    for name, count, mean_age, wards in (
        ("A", 1500, 62, usual),
        ("B", 900, 66, usual),
        ("C", 1200, 75, ["internal", "surgery", "geriatrics"]),
        ("D", 800, 64, usual),
    ):
        frame = patients(rng, count + 100, mean_age, wards)
        if name == "B":
            frame = frame[frame["outcome"] != "transferred"]
        frame = with_gaps(rng, frame)
        if name == "C":
            frame = frame.drop(columns="bmi")
        if name == "D":
            new = frame.tail(100).drop(columns="outcome")
            new.to_csv(folder / "new_patients.csv", index=False)
            frame["creatinine"] = (frame["creatinine"] * MICROMOLES).round()
        frame.head(len(frame) - 100).to_csv(folder / f"hospital_{name}.csv", index=False)
    print(f"written to {folder}: hospital_A.csv to hospital_D.csv, new_patients.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
