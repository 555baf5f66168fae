"""The gates: what each shows, the tests that hold it, how many cases it asks for, and where its tests are weaker."""

from __future__ import annotations

from dataclasses import dataclass

ROOMS = {
    "A": "Slides in",
    "B": "The store of bags",
    "C": "Training, checkpoints, inference",
    "D": "Numbers",
    "E": "The viewer",
    "F": "Clusters, supply chain, resources",
}


@dataclass(frozen=True)
class Gate:
    """One thing that must not break.

    Args:
        id: a room's letter and a number.
        shows: what holds if its tests pass, in one line.
        asked: how many cases the gate asks for; None where it asks for all there are.
        tests: pytest node ids below the project's root.
        lacks: what the gate asks for and its tests do not show.
        without: why a gate does not apply.
    """

    id: str
    shows: str
    asked: int | None
    tests: tuple[str, ...] = ()
    lacks: str = ""
    without: str = ""


HERE = "tests/reliability"
SLIDES = (
    Gate("A1", "Damaged slides among good ones: each has a final status, good bags are those of a clean run", 200,
         (f"{HERE}/test_extract_mutants.py::test_two_hundred_mutants_and_ten_good_slides",)),
    Gate("A2", "A manifest of hashes refuses damaged slides before they are decoded", 200,
         (f"{HERE}/test_extract_mutants.py::test_a_manifest_refuses_every_mutant_before_it_is_decoded",
          "tests/extract/test_source.py::test_an_expected_hash_is_compared_before_anything_else",
          f"{HERE}/test_manifest_told.py", "tests/experiment/test_stock.py")),
    Gate("A3", "Bombs are refused by name, within memory and seconds of processor time", 10,
         (f"{HERE}/test_bombs.py::test_ten_bombs_are_refused_by_name_and_a_good_slide_among_them_is_not",
          "tests/slides/readers/test_preflight.py::test_bombs_are_refused_by_name_and_cost_nothing")),
    Gate("A4", "A decoder that crashes, is killed or hangs is one failed item", 60,
         (f"{HERE}/test_bombs.py::test_crashes_kills_and_hangs_are_one_failed_item_each",)),
    Gate("A5", "Missing and undecodable tiles are counted exactly, limited and never encoded", 10,
         ("tests/slides/test_slide.py::TestMissing",
          "tests/extract/test_slide.py::test_tiles_that_lack_pixels_are_counted_and_never_encoded",
          "tests/slides/readers/test_lacking_data.py::test_segments_that_lack_data_are_missing_and_no_others")),
    Gate("A6", "A pixel size that is absent, absurd or contradicted is refused; nothing is enlarged unasked", 12,
         ("tests/slides/test_mpp.py", "tests/slides/test_slide.py::TestPixels::test_upsampling_only_when_allowed",
          "tests/slides/test_slide.py::TestFormats::test_aperio_with_an_absurd_pixel_size",
          "tests/slides/test_slide.py::TestFormats::test_aperio_with_power_only_and_contradiction",
          "tests/slides/test_slide.py::TestFormats::test_pixels_that_are_not_square",
          "tests/slides/test_lattice.py::TestPixelSizes::test_a_magnification_the_scan_does_not_have")),
    Gate("A7", "Names of slides that look alike, are hostile or meet in one file overwrite nothing", 24,
         (f"{HERE}/test_hostile_names.py",
          "tests/bags/test_store.py::test_ids_make_safe_distinct_names", "tests/ground/test_identifiers.py",
          "tests/extract/test_batch.py::test_slides_of_one_name_are_refused_and_the_store_is_left_alone",
          "tests/extract/test_source.py::test_slides_that_cannot_be_told_apart_are_named")),
    Gate("A8", "What a slide file, its name or its folder says of its patient reaches no artefact but the map", 8,
         ("tests/extract/test_privacy.py::test_what_a_slide_says_of_its_patient_reaches_nothing",
          "tests/extract/test_privacy.py::test_the_search_looks_where_a_study_writes",
          "tests/extract/test_pseudonymous_study.py", "tests/ground/test_pseudonyms.py"),
         lacks="without `--pseudonyms` a slide goes by the name of its file; patients go by their column in the cohort "
         "table"),
    Gate("A9", "A planted lesion is found at its coordinates in every level, map and format", 9,
         ("tests/viewer/test_planted.py::test_a_planted_lesion_is_the_peak_everywhere",
          "tests/slides/test_lattice.py::test_a_planted_mark_is_in_its_cell_at_every_level")),
    Gate("A10", "Any bytes, guided by coverage, through readers of headers and tables: an answer or a refusal", None,
         ("tests/slides/readers/test_preflight.py::test_any_damage_is_refused_or_passes",
          "tests/slides/readers/test_codestream.py::test_any_bytes_are_answered", "tests/cohorts/test_fuzz.py",
          f"{HERE}/test_guided_fuzz.py")),
    Gate("A11", "Random folders through every verb of a study: what is bad is named, the rest is as if alone", 200,
         (f"{HERE}/test_folders.py", f"{HERE}/test_any_verb.py")),
)  # fmt: skip

BAGS = (
    Gate("B1", "Extraction killed at random moments and resumed: the store of an uninterrupted run", 200,
         (f"{HERE}/test_extract_kill.py",
          "tests/extract/test_batch.py::test_killed_at_any_moment_and_resumed_the_store_is_the_same")),
    Gate("B2", "A crash at every step of writing a bag, a checkpoint or a file leaves the old or the new, whole", None,
         (f"{HERE}/test_crash_points.py::test_a_crash_at_every_step_leaves_the_old_or_the_new_whole",
          "tests/ground/test_files.py::test_a_directory_appears_whole_or_not_at_all")),
    Gate("B3", "Whatever is published is written, flushed, renamed, and its folder flushed, in this order", None,
         (f"{HERE}/test_publish_order.py", "tests/ground/test_files.py::test_the_order_of_a_publish_is_durable")),
    Gate("B4", "Single flipped bits in bags, records and the store's own file are found before a tensor is used", 500,
         ("tests/bags/test_store.py::test_every_flipped_bit_is_found",
          "tests/bags/test_seal.py::test_every_single_bit_of_a_record_and_of_store_json_is_guarded")),
    Gate("B5", "A full disk, a quota, no permission or a bad device: the file is named, the old one stays", 40,
         ("tests/ground/test_files.py::test_an_error_at_any_step_keeps_the_old_artefact",
          "tests/ground/test_files.py::test_a_disk_that_fills_at_any_byte_keeps_the_old_artefact",
          "tests/cli/test_errors.py::test_what_the_system_refuses_names_the_file_and_the_next_step")),
    Gate("B6", "Malformed and hostile bag files, ours and others', are refused naming file, field and reason", 60,
         ("tests/bags/test_store.py::test_hostile_files_are_refused_by_name",
          "tests/bags/test_store.py::test_truncated_files_are_refused",
          "tests/bags/test_bag.py::test_a_broken_rule_is_named", "tests/interchange/test_hostile.py",
          f"{HERE}/test_tensor_files.py")),
    Gate("B7", "Four writers of one store leave what one leaves; stale locks are taken over, live ones never", 50,
         (f"{HERE}/test_store_at_scale.py::test_four_writers_of_one_store_leave_what_one_leaves",
          f"{HERE}/test_store_at_scale.py::test_stale_locks_are_taken_over_and_live_ones_never")),
    Gate("B8", "Random lattices: every fine tile has one parent that contains it; dropping takes all descendants",
         10_000, ("tests/slides/test_lattice.py::test_ten_thousand_lattices_nest",
                  "tests/slides/test_lattice.py::test_against_brute_force")),
    Gate("B9", "Bags of another encoder, other weights, tiles or settings are refused naming both sides", 10,
         (f"{HERE}/test_refused_runs.py::test_bags_made_otherwise_are_refused_naming_both_sides",
          "tests/bags/test_store.py::test_mixed_encoders_are_refused_naming_both")),
    Gate("B10", "`verify` over a thousand bags finds every planted fault and no other, about as fast as SHA-256", 1000,
         (f"{HERE}/test_store_at_scale.py::test_verify_finds_all_of_25_faults_among_a_thousand_bags_and_no_other",
          f"{HERE}/test_store_at_scale.py::test_verify_takes_little_more_than_hashing")),
)  # fmt: skip

TRAINING = (
    Gate("C1", "The same seed gives the same bytes", 12,
         (f"{HERE}/test_training_kills.py::test_the_same_seed_gives_the_same_bytes_every_time",)),
    Gate("C2", "Training killed at random moments resumes to the bytes of an uninterrupted run", 50,
         (f"{HERE}/test_training_kills.py::test_training_killed_at_random_moments_resumes_bitwise",
          "tests/training/test_fit.py::test_stopped_between_epochs_resumes_bitwise")),
    Gate("C3", "Killed while checkpointing: once one was saved there always is a valid one", 200,
         (f"{HERE}/test_crash_points.py::test_killed_while_checkpointing_a_valid_checkpoint_is_always_there",)),
    Gate("C4", "Resuming with other settings, data, split or threads is refused, or stamped in the result", 8,
         (f"{HERE}/test_refused_runs.py::test_resuming_with_anything_changed_is_refused_or_stamped",
          "tests/training/test_fit.py::test_changed_bags_are_another_job")),
    Gate("C5", "A number that is none stops training within a step and names slide and step", 40,
         ("tests/training/test_fit.py::test_a_nan_stops_at_once_and_names_slide_and_step",
          "tests/training/test_fit.py::test_a_non_finite_gradient_stops_too",
          "tests/tasks/test_cox.py::test_nan_never_enters_the_bank", "tests/tasks/test_survival.py",
          "tests/bags/test_bag.py::test_a_broken_rule_is_named", f"{HERE}/test_non_finite.py")),
    Gate("C6", "The Cox loss is brute force's in any order; what cannot be compared is refused", 1000,
         ("tests/tasks/test_cox.py",)),
    Gate("C7", "A slide has one answer, bit for bit: stored in any order, among others or alone, after a restart", 60,
         ("tests/end_to_end/test_planted_signals.py::test_a_prediction_is_bitwise_the_same_for_any_stored_order",
          "tests/models/test_contract.py::test_prediction_is_the_same_for_any_stored_order",
          "tests/models/test_contract.py::test_evaluation_is_repeatable", f"{HERE}/test_one_answer.py")),
    Gate("C8", "Files that hold code are refused by name and never run it", 14,
         (f"{HERE}/test_hostile_files.py::test_code_in_a_file_is_refused_by_name_and_never_runs",
          "tests/models/originals/test_checkpoint.py::test_code_in_a_pickle_is_refused_and_does_not_run",
          "tests/cli/test_import_checkpoint.py::test_a_malicious_pickle_does_not_run",
          "tests/interchange/test_layouts.py::test_a_pickle_is_never_opened",
          "tests/encoders/test_encoder.py::test_pickled_weights_are_refused_with_the_command_that_converts_them")),
    Gate("C9", "No file of the package unpickles, evaluates or calls a shell", None,
         ("tests/ground/test_public.py::test_nothing_is_unpickled_evaluated_or_shelled_out",)),
    Gate("C10", "Attacks on the header of a tensor file, of up to 100 MiB, are refused within memory", 12,
         ("tests/bags/test_store.py::test_hostile_files_are_refused_by_name", f"{HERE}/test_tensor_files.py")),
    Gate("C11", "A run whose weights, classes or encoder are another's answers nothing", 6,
         (f"{HERE}/test_refused_runs.py::test_a_run_of_other_weights_classes_or_encoder_answers_nothing",)),
    Gate("C12", "Training that is asked to end ends, and resumes to the bytes of an uninterrupted run", 20,
         (f"{HERE}/test_training_kills.py::test_asked_to_end_it_ends_and_resumes_bitwise",)),
)  # fmt: skip

NUMBERS = (
    Gate("D1", "A split that shares a patient, a file or tissue is refused, naming patient and parts", 30,
         ("tests/cohorts/test_audit.py", "tests/cli/test_split.py::test_two_forms_of_one_name_are_one_patient",
          "tests/cohorts/test_split_files.py::test_a_leak_is_refused_with_patient_row_and_parts",
          "tests/cli/test_split.py::test_no_patient_column_is_an_error_unless_the_user_says_so",
          "tests/bags/test_lookalikes.py", "tests/extract/test_rescanned.py", "tests/experiment/test_leaks.py"),
         lacks="a slide that was turned or mirrored between two scans is not known again, nor one of fewer than 16 "
         "tiles at every level; bags of a storage elsewhere are not fetched to be compared"),
    Gate("D2", "Split by site, no site is in two parts; tables say what the site alone would score", 200,
         ("tests/cohorts/test_splits.py::test_by_site_no_site_is_in_two_parts", "tests/cohorts/test_sites.py",
          "tests/cli/test_split.py::test_ids_are_text_and_the_site_na_is_a_site")),
    Gate("D3", "Test labels and test bags have no say in what is chosen", 5,
         (f"{HERE}/test_held_out.py", "tests/training/test_fit.py::test_test_labels_have_no_say",
          "tests/experiment/test_experiment.py::test_noise_for_test_labels_changes_no_choice_between_candidates")),
    Gate("D4", "Shuffled labels teach nothing: the mean score over seeds is chance", 20,
         ("tests/end_to_end/test_planted_signals.py::test_shuffled_labels_teach_nothing",)),
    Gate("D5", "Metrics are those of the libraries and of brute force; what is undefined is no number", 2000,
         ("tests/tasks/test_classification_metrics.py", "tests/tasks/test_survival_metrics.py")),
    Gate("D6", "Malformed tables: the error names file, row and column", 60,
         ("tests/cohorts/test_malformed.py", "tests/cohorts/test_split_files.py::test_malformed_split_files",
          "tests/cohorts/test_split_files.py::test_names_in_the_written_csv_never_start_a_formula")),
    Gate("D7", "Slides in are slides used and slides excluded, in every table; a removed one fails the build", 10,
         (f"{HERE}/test_tables.py::test_every_slide_is_accounted_for_in_every_table",)),
    Gate("D8", "Tables built again from stored predictions have the same bytes; a changed digit is refused", None,
         (f"{HERE}/test_tables.py::test_tables_are_built_again_to_the_byte_and_no_changed_digit_is_taken",)),
    Gate("D9", "Survival without a declared coding of events is refused; events and follow-up are told", 4,
         ("tests/cohorts/test_tables.py::test_event_coding_is_asked_for_then_obeyed",
          "tests/cohorts/test_tables.py::test_a_declared_coding_against_the_format_is_noted",
          "tests/cohorts/test_cohort.py::test_summary_prints_what_shows_a_flipped_event",
          "tests/cohorts/test_cohort.py::test_median_follow_up_is_the_reverse_kaplan_meier_median")),
    Gate("D10", "Every figure of a table has its number of runs, spread, interval and run ids; quoted ones say so",
         None, (f"{HERE}/test_tables.py::test_every_figure_says_what_it_is_made_of",)),
)  # fmt: skip

VIEWER = (
    Gate("E1", "No address leaks a file, on any route", 1000,
         ("tests/viewer/test_security.py::test_no_payload_leaks_or_breaks_anything",
          "tests/viewer/test_load.py::test_raw_bytes_on_the_socket_leak_nothing")),
    Gate("E2", "No wrong, ended, removed or foreign token opens any route but one; others need a token and TLS", None,
         ("tests/viewer/test_tokens.py", "tests/viewer/test_listening.py",
          "tests/viewer/test_notes.py::test_everybody_writes_their_own_note_and_no_other")),
    Gate("E3", "Fifty clients are served without an error", 50,
         ("tests/viewer/test_load.py::test_fifty_clients_are_served_well",)),
    Gate("E4", "Overload is answered with 503 and is over when it is over", 1,
         ("tests/viewer/test_load.py::test_five_hundred_are_turned_away_and_it_is_soon_over",
          "tests/viewer/test_wire.py::test_many_half_sent_headers_keep_nobody_out",
          "tests/viewer/test_wire.py::test_beyond_the_limit_one_is_told_when_to_come_back")),
    Gate("E5", "Numbers, headers and bodies out of range are refused", 40,
         ("tests/viewer/test_many.py::test_numbers_out_of_range_are_refused_and_cost_no_memory",
          "tests/viewer/test_notes.py", "tests/viewer/test_wire.py::test_a_header_that_never_ends_is_dropped")),
    Gate("E6", "Uploads", 20, without="Nothing can be uploaded: the viewer reads, and writes only notes if asked to."),
    Gate("E7", "Names with markup are shown as text; pages hold no inline code", 20,
         ("tests/viewer/test_many.py::test_names_with_markup_are_text_everywhere",
          "tests/viewer/test_security.py::test_every_answer_carries_the_headers_and_no_page_holds_inline_code")),
    Gate("E8", "A slide that is replaced or deleted while it is open is never mixed with another", 30,
         ("tests/viewer/test_viewer.py::test_a_slide_that_changes_or_goes_is_not_mixed",
          "tests/viewer/test_many.py::test_a_slide_that_is_replaced_cut_or_deleted_is_never_mixed",
          "tests/viewer/test_viewer.py::test_a_write_in_place_that_keeps_size_and_time_is_seen",
          "tests/viewer/test_viewer.py::test_another_file_under_the_same_name_is_refused")),
    Gate("E9", "Replies hold no path and no traceback; one line of log for each request", 200,
         ("tests/viewer/test_many.py::test_a_thousand_requests_leave_a_thousand_lines_and_no_reply_names_a_file",
          "tests/viewer/test_security.py::test_no_payload_leaks_or_breaks_anything")),
    Gate("E10", "Jobs of the server", 50,
         without="The viewer has no jobs: an answer is computed while it is asked for, and nothing of it is stored."),
)  # fmt: skip

RESOURCES = (
    Gate("F1", "A cluster that is open to everybody is refused, and one with a token refuses strangers", 4,
         ("tests/compute/test_cluster.py::test_an_open_cluster_is_refused_before_it_is_started",
          f"{HERE}/test_open_clusters.py::test_open_clusters_are_refused_and_ours_refuses_strangers"),
         lacks="strangers come by Ray's own protocol: its dashboard is neither installed nor started here. Tried once "
               "by hand with that of Ray 2.60.0, a job posted without a token was answered with 401, with a wrong one "
               "with 403"),
    Gate("F2", "Workers of a cluster that are killed cost nothing: the bytes of an undisturbed run", 30,
         (f"{HERE}/test_cluster_kills.py::test_workers_killed_during_extract_change_nothing",
          f"{HERE}/test_cluster_kills.py::test_workers_killed_during_run_change_nothing",
          "tests/compute/test_cluster.py::TestContract"),
         lacks="all workers are on one machine: a test has no other"),
    Gate("F3", "One worker or several, here or on a cluster: the same bytes", 3,
         ("tests/compute/test_same_bytes.py",
          "tests/extract/test_batch.py::test_this_process_or_two_others_give_the_same_bytes",
          "tests/interchange/test_layouts.py::test_processes_give_the_same_store")),
    Gate("F4", "A driver that is killed leaves no process and can be resumed", 10,
         (f"{HERE}/test_cluster_kills.py::test_a_driver_that_is_killed_loses_nothing_and_leaves_nobody",
          "tests/compute/test_executors.py::test_stopping_early_ends_the_workers"),
         lacks="Ray's object store is not filled: bags never pass through it"),
    Gate("F5", "Packages are installed by hash, a changed file is not; versions with known holes are refused", None,
         ("tests/supply/test_supply.py", "tests/ground/test_floors.py"),
         lacks="no database of advisories is asked, since no test may use the network: the oldest versions that are "
               "taken were set by hand"),
    Gate("F6", "No command connects anywhere", 1, (f"{HERE}/test_no_network.py",)),
    Gate("F7", "Encoder weights with a changed byte are refused", 5,
         ("tests/encoders/test_lite0.py::test_weights_with_one_byte_changed_are_refused",
          "tests/encoders/test_timm_models.py::test_a_pinned_hash_refuses_a_changed_byte")),
    Gate("F8", "A huge bag is answered under a limit on memory, or refused with what it needs", 3,
         (f"{HERE}/test_resources.py::test_a_huge_bag_is_answered_or_refused_under_a_limit_on_memory",)),
    Gate("F9", "Hundreds of slides in one process: memory and open files stay, no temporary file is left", 500,
         (f"{HERE}/test_resources.py::test_memory_and_open_files_stay_over_many_slides",)),
)  # fmt: skip

GATES = (*SLIDES, *BAGS, *TRAINING, *NUMBERS, *VIEWER, *RESOURCES)
