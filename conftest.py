"""For all tests: what Hypothesis draws, and the markers of those that `make test-fast` and `make test` leave out.

Hypothesis draws the same examples in every run, so that no check fails by luck; `make draws` draws fresh ones. No
example has a time limit, because machines are noisy.

Slow tests are listed by name, of a module or of a test function, so that a test may move to another folder and stays
slow. A test belongs here when it takes more than half a second, or all its cases together more than a second, on one
core; `pytest --durations=0` tells. A module belongs here when most of its time is in such tests.

Tests that run the documentation, the examples and the papers' tables, as a reader would, have the marker ``pages``:
`make test` leaves them out, and `make pages` and `.ci/run` run them.
"""

from importlib.util import find_spec

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fresh", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")

collect_ignore_glob = [] if find_spec("triton") else ["src/fedskew/kernels/*_kernels.py"]

SLOW_MODULES = frozenset(
    {
        "test_advise",
        "test_agree",
        "test_browser",
        "test_effect",
        "test_grid",
        "test_goals",
        "test_hospitals",
        "test_can_fail",
        "test_ccvr",
        "test_checkpoint",
        "test_client_model",
        "test_client_scores",
        "test_conformance",
        "test_compare",
        "test_choose",
        "test_comparison",
        "test_independent_judge",
        "test_judge",
        "test_judged_right",
        "test_worker_processes",
        "test_download",
        "test_jobs",
        "test_live",
        "test_load",
        "test_lock",
        "test_mishaps",
        "test_effects",
        "test_findings",
        "test_faults",
        "test_flower_simulation",
        "test_parity",
        "test_metrics",
        "test_operations",
        "test_pixels",
        "test_power",
        "test_real",
        "test_real_nodes",
        "test_resume",
        "test_secrets",
        "test_secure_sum",
        "test_scheduled",
        "test_scored_is_predicted",
        "test_scores",
        "test_sample_schedule",
        "test_hostile_sittings",
        "test_sitting",
        "test_slurm",
        "test_study",
        "test_split_figure",
        "test_stratify",
        "test_target",
        "test_exact",
        "test_exported_model",
        "test_model_commands",
        "test_prediction",
        "test_silo_commands",
        "test_silo_runs",
        "test_array_silos",
        "test_lies",
        "test_checks",
        "test_silo_node",
        "test_three_silos",
        "test_identities",
        "test_hostile_input",
        "test_bad_input",
        "test_first_answers",
        "test_listing",
    }
)
SLOW_TESTS = frozenset(
    {
        "test_fl_bench_converted",
        "test_pfllib_converted_and_trained",
        "test_pfllib_is_ordered_by_number",
        "test_pfllib_there_and_back",
        "test_the_command_writes_a_layout",
        "test_pickled_files_of_pfllib_are_refused_with_the_command",
        "test_what_a_client_map_cannot_say",
        "test_what_the_script_for_fl_bench_refuses",
        "test_what_the_script_for_pfllib_refuses",
        "test_a_diverging_loss_is_told",
        "test_a_folder_has_the_models_of_shipped_methods",
        "test_predictions_and_folders",
        "test_a_panel_is_there_where_its_columns_are",
        "test_many_clients_are_aggregated",
        "test_mypy",
        "test_pyright",
        "test_several_runs",
        "fedskew.testing.check",
        "test_a_clash_is_told_of_the_file_in_a_new_process",
        "test_a_comparison_is_resumed_with_the_same_import_alone",
        "test_a_run_is_resumed_with_the_same_import_alone",
        "test_on_the_command_line_and_in_a_file",
        "test_workers_import_it_too",
        "test_a_killed_group_continues_with_the_same_bits",
        "test_a_run_of_an_older_version_is_gone_on_with",
        "test_a_split_of_labels_and_back",
        "test_a_split_of_numbers_and_back",
        "test_a_stopped_run_goes_on_to_the_bit",
        "test_an_algorithm_that_uses_every_hook",
        "test_any_method_any_engine_same_numbers_under_a_fleet",
        "test_any_number_of_processes_gives_the_same_bits",
        "test_commands_of_the_page_run",
        "test_export_has_the_merged_model",
        "test_frozen_parameters_stay_and_are_never_sent",
        "test_nothing_frozen_changes_travels_or_is_kept",
        "test_what_is_used_has_plain_weights",
        "test_python_examples_of_the_page_run",
        "test_regression_from_the_command_line",
        "test_several_labels_from_a_table",
        "test_several_seeds_of_regression",
        "test_spread_is_as_even_as_it_can_be",
        "test_the_control_is_the_mean_of_all_controls_whoever_is_absent",
        "test_the_given_model_and_data_stay_as_they_are",
        "test_the_written_configuration_gives_the_same_run",
        "test_the_written_configuration_gives_the_same_bits_again",
        "test_what_must_stay_a_mean_stays_one_under_any_rule",
        "test_a_stack_of_copies_equals_each_copy_alone",
        "test_help_does_not_import_torch",
        "test_strength_goes_from_alike_to_the_rule",
        "test_what_was_settled_stands_in_the_record",
        "test_dirichlet_and_quantity_always_end_and_keep_every_row_once",
        "test_250_rounds_with_a_rule_do_not_fall_apart",
        "test_a_composed_run_can_be_resumed",
        "test_a_composition_conforms",
        "test_it_conforms",
        "test_a_damaged_file_is_read_or_refused",
        "test_a_model_that_writes_to_its_input_changes_no_row_and_no_number",
        "test_a_signed_message_with_any_other_head_is_refused",
        "test_a_split_has_all_that_a_node_and_a_reader_need",
        "test_a_thousand_clients_sort_by_name",
        "test_a_thousand_seeds_are_read_at_once",
        "test_all_rows_of_a_large_client_take_bounded_memory",
        "test_an_enrolment_with_any_other_head_is_refused",
        "test_any_change_of_an_enrolment_is_refused",
        "test_any_change_of_any_byte_is_refused",
        "test_any_strength_keeps_every_row_once",
        "test_bombs_are_refused_before_they_go_off",
        "test_by_hand_and_alike_in_every_engine",
        "test_chances_are_proportional_to_scores_and_nobody_is_left_out",
        "test_classes_gives_exactly_k_labels_and_deals_each_evenly",
        "test_columns_of_the_tables",
        "test_conforms_and_controls_travel_both_ways",
        "test_conforms_with_modules_and_strengths_travel_down",
        "test_conforms_without_strength_and_sends_no_more_than_fedavg",
        "test_engines_agree",
        "test_engines_agree_and_a_stopped_run_goes_on",
        "test_equal_parts_are_runs_of_equal_size",
        "test_every_algorithm",
        "test_every_model_in_float32",
        "test_every_model_in_float64",
        "test_going_on_gives_the_bits_of_never_stopping",
        "test_import_is_light",
        "test_lam_0_is_local",
        "test_many_clients_cost_little",
        "test_more_or_larger_ciphertexts_than_a_step_allows",
        "test_no_skew_splits_a_series",
        "test_on_a_terminal_there_is_a_bar",
        "test_on_all_rows_in_pieces",
        "test_on_unlike_parabolas_it_finds_the_joint_minimum_and_fedavg_does_not",
        "test_pacs",
        "test_random_damage_is_refused_or_put_right",
        "test_redraws_end",
        "test_resumed_after_the_end_or_after_the_last_round_the_bits_are_the_same",
        "test_resumed_it_has_the_same_bits",
        "test_sfdl_takes_any_table",
        "test_shards_change_nothing_but_rounding",
        "test_small_memory_gives_the_same_in_chunks",
        "test_the_global_model_is_fedavgs",
        "test_the_loop_is_the_reference_in_another_memory_layout",
        "test_the_real_script_says_the_same",
        "test_threads_follow_the_environment_and_are_written_down",
        "test_three_alike_are_one_whatever_their_order",
        "test_through_a_pipe_there_is_no_bar_and_no_colour",
        "test_training_ends_at_the_joint_minimum_and_fedavg_does_not",
    }
)


PAGES_MODULES = frozenset({"test_hospitals", "test_site", "test_three_silos"})
PAGES_TESTS = frozenset({"test_the_blocks_of_a_page", "test_the_smallest_version_runs"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the markers on what is listed."""
    for item in items:
        module = item.path.stem
        name = item.name.partition("[")[0]
        runs_pages = module in PAGES_MODULES or name in PAGES_TESTS
        if runs_pages:
            item.add_marker(pytest.mark.pages)
        if runs_pages or module in SLOW_MODULES or name in SLOW_TESTS:
            item.add_marker(pytest.mark.slow)
