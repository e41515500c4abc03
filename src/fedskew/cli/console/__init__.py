"""What a command prints: tables, the progress of a training, and errors."""

from fedskew.cli.console.error_text import complain, system_error_text, usage_error_text
from fedskew.cli.console.progress import live_page, show_progress
from fedskew.cli.console.readable_values import duration, headline, metric_value
from fedskew.cli.console.summary_columns import column_meanings
from fedskew.cli.console.summary_output import print_summary
from fedskew.cli.console.terminal import console_for, escape

__all__ = [
    "column_meanings",
    "complain",
    "console_for",
    "duration",
    "escape",
    "headline",
    "live_page",
    "metric_value",
    "print_summary",
    "show_progress",
    "system_error_text",
    "usage_error_text",
]
