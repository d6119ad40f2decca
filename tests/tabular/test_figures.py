import numpy as np
import pytest
from matplotlib.figure import Figure

from spectral_bellman import tabular
from spectral_bellman.tabular import figures


def axes() -> object:
    return Figure().subplots()


def test_singular_values_end_on_the_dashed_lines() -> None:
    matrix = np.diag([5.0, 3.0, 1.0])
    panel = axes()
    figures.plot_singular_values(panel, matrix, rank=2, iterations=30)
    *dashed, first, second = [line.get_ydata() for line in panel.lines]
    assert sorted(line[0] for line in dashed) == [3, 5]
    np.testing.assert_allclose([first[-1], second[-1]], [5, 3], rtol=1e-6)


def test_subspace_error_is_drawn_beside_its_rate() -> None:
    panel = axes()
    figures.plot_subspace_error(panel, np.diag([5.0, 3.0, 1.5]), rank=2, iterations=8)
    found, expected = (line.get_ydata() for line in panel.lines)
    np.testing.assert_allclose(found / expected, 1, rtol=0.5)
    assert "0.25" in panel.get_legend().get_texts()[1].get_text()


def test_without_a_gap_there_is_no_rate_to_draw() -> None:
    with pytest.raises(
        ValueError, match=r"rank must lie in \[1, 2\], so that something is left out; got 3"
    ):
        figures.plot_subspace_error(axes(), np.eye(3), rank=3, iterations=2)


def test_parameter_distribution_follows_the_means() -> None:
    rounds = tabular.spectral_q_iteration(tabular.chain_mdp(5, 0.9), 2, 6)
    panel = axes()
    figures.plot_parameter_distribution(panel, rounds, variance=0.01)
    np.testing.assert_allclose(panel.lines[0].get_xydata(), [r.parameters for r in rounds])
    with pytest.raises(ValueError, match="dimension 2, got 3"):
        figures.plot_parameter_distribution(
            panel, tabular.spectral_q_iteration(tabular.chain_mdp(5, 0.9), 3, 2), 0.01
        )


def test_errors_are_drawn_in_units_of_the_bound() -> None:
    panel = axes()
    figures.plot_error_over_rounds(panel, {2: [4.0, 2.0]}, unit=4.0)
    assert panel.lines[0].get_ydata().tolist() == [1, 0.5]
    panel = axes()
    figures.plot_error_by_rank(
        panel, [1, 2], {"random": np.array([[0.9, 0.5], [0.7, 0.3], [0.8, 0.4]])}, "title"
    )
    assert panel.lines[0].get_ydata().tolist() == [0.8, 0.4]
    panel = axes()
    figures.plot_error_by_steps(
        panel, [1, 8], {"for T^h": np.array([[0.4, 0.01], [0.2, 0.03], [0.3, 0.02]])}, "title"
    )
    assert panel.lines[0].get_ydata().tolist() == [0.3, 0.02]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "8"]
