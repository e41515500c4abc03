"""The diagram of verdicts: a bar for each paper, pieces in the order of the outcomes, numbers where there are any."""

from fedskew.plots.verdict_bars import draw_verdicts

OUTCOMES = ("held", "refuted", "undecided", "cannot be tested here")


def test_pieces_begin_where_the_last_one_ended():
    figure = draw_verdicts({"One": {"held": 3, "undecided": 2}, "Two": {"refuted": 1}}, OUTCOMES)
    [axes] = figure.axes
    pieces = []
    for bar in axes.patches:
        if bar.get_width():
            place = round(bar.get_y() + bar.get_height() / 2)
            pieces.append((place, bar.get_x(), bar.get_width()))
    assert sorted(pieces) == [(0, 0, 3), (0, 3, 2), (1, 0, 1)]
    assert sorted(text.get_text() for text in axes.texts) == ["1", "2", "3"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["One", "Two"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(OUTCOMES)
