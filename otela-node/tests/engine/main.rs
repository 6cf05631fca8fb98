//! Supervision of hostile engines: Python scripts that misbehave as real ones were seen to.
//!
//! The guard is a subcommand of the agent's own binary. Here that is this test's binary, which is why it has no
//! usual harness: called as `guard` or `guard-exec` it is the guard, as `agent` a small agent that a test can
//! kill. Cases are named after the entries of the bug collection that they reproduce.

mod agent;
mod cases;
mod scene;

use libtest_mimic::{Arguments, Trial};
use otela_node::engine::guard;
use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().skip(1).collect();
    match argv.first().and_then(|word| word.to_str()) {
        Some("guard") => guard::main(&argv[1..]),
        Some("guard-exec") => guard::exec(&argv[1..]),
        Some("agent") => agent::main(&argv[1..]),
        _ => libtest_mimic::run(&Arguments::from_args(), trials()).exit_code(),
    }
}

/// Each named case as a trial of that name.
macro_rules! trials {
    ($($module:ident: $($case:ident)*;)*) => {
        fn trials() -> Vec<Trial> {
            vec![$($(Trial::test(stringify!($case), || { scene::run(cases::$module::$case()); Ok(()) }),)*)*]
        }
    };
}

trials! {
    tree:
        p49_stop_ends_workers_that_hide_and_ignore
        p49_a_polite_tree_is_not_killed
        p49_an_agent_killed_leaves_nothing
        p49_an_agent_that_drops_its_engine_leaves_nothing
        p49_tasks_shut_down_only_after_the_engine
        p49_a_guard_killed_leaves_nothing_and_harms_no_other_engine
        p49_a_guard_killed_in_a_session_from_outside_the_container
        p49_agent_and_guard_killed_together_end_the_engine
        p49_a_middle_process_killed_hides_nobody
        p49_an_exit_is_known_at_once_and_strays_are_ended
        p49_signals_to_the_whole_job_leave_the_guard_in_charge
        p49_a_second_stop_shortens_the_grace
        p49_the_guard_ends_as_the_engine_did;
    launch:
        p49_commands_that_cannot_run_are_named
        p52_the_engine_gets_its_words_and_environment_unchanged
        p51_output_that_nobody_reads_never_stops_the_engine;
    ready:
        p36_ready_only_after_a_generated_token
        p36_never_ready_says_how_far_it_came
        p36_an_engine_that_ends_says_how
        p36_models_that_do_not_complete_text
        p36_refusals_without_a_reason_are_not_believed
        p36_a_key_in_the_arguments_is_used
        p50_the_port_of_another_server_is_never_ready
        p50_a_shared_port_is_never_ready
        p50_another_port_than_expected_is_used_and_told
        p52_the_literal_address_is_found
        p52_no_proxy_applies;
}
