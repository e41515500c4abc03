"""Why each method of a comparison has its verdict, in a sentence."""

from typing import TYPE_CHECKING

from fedskew.report.html_page import listed
from fedskew.report.markup import Markup, tag
from fedskew.study.judge import Contrast

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

_MOST = 40  # reasons that are listed; of more methods, the forest plot says it
_AT_ONCE = 4  # reasons that are shown without being asked for


def reasons_of(found: "Comparison") -> Markup:
    """Return the reasons as a list; nothing where methods are many, or no verdict has an interval."""
    contrasts = found.judgement.contrasts
    if len(contrasts) > _MOST:
        return Markup()
    texts = []
    for contrast in contrasts:
        text = _reason(found, contrast)
        if text:
            texts.append(text)
    if not texts:
        return Markup()
    reasons = tag("ul", *listed(texts), class_="reasons")
    if len(texts) <= _AT_ONCE:
        return reasons
    return tag("details", tag("summary", f"Why: {len(texts)} reasons"), reasons)


def _reason(found: "Comparison", contrast: Contrast) -> str:
    """Return why a contrast has its verdict; empty without an interval."""
    if contrast.interval is None:
        return ""
    unit = found.judgement.unit
    low, high = (unit.factor * end for end in contrast.interval)
    digits = found.digits
    where = ""
    if contrast.cell:
        where = f"{contrast.cell}, "
    interval = f"the interval from {low:+.{digits}f} to {high:+.{digits}f}{unit.of_differences}"
    name = f"{where}{contrast.method} minus {contrast.control}"
    if contrast.verdict in ("better", "worse"):
        return f"{name}: {interval} excludes 0."
    zone = ""
    if contrast.rules.zone:
        zone = f"the zone of ±{unit.factor * contrast.rules.zone:.2g}{unit.of_differences}"
    if contrast.verdict == "equal":
        return f"{name}: its plain 90 % interval lies within {zone}."
    text = f"{name}: {interval} holds 0"
    if zone:
        text += f", and the difference is not shown to lie within {zone}"
    if contrast.blocks_needed:
        text += (
            f"; about {contrast.blocks_needed:,} blocks would be needed, here are {contrast.blocks}"
        )
    return f"{text}."
