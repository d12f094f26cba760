//! The gate as a real process, between real clients and a real OpenSSH server.
//!
//! This program plays the daemon itself: started as `__git-gate` it is that, else it runs the tests. Without an
//! OpenSSH server on the machine they are skipped, aloud.
//!
//! ```text
//! pushes    what is pushed is upstream, and what is upstream is fetched
//! secrets   every place where a secret hides
//! moves     which refs move, and how many
//! protocol  packs, bodies and clients that are none
//! ends      clients, gates and upstreams that end in the middle
//! wrong     what is wrong is a sentence
//! people    a user decides
//! lock_out  guesses at credentials: what their verdict says, and where they end
//! within    a gate started by root, in a view of the files of its own
//! clients   other clients than git, and an upstream over https
//! ```

mod clients;
mod ends;
mod lock_out;
mod moves;
mod people;
mod protocol;
mod pushes;
mod scene;
mod secrets;
mod within;
mod wrong;

use std::process::ExitCode;

use anyhow::{Context, Result};
use bottle_test_support::sshd::Sshd;
use libtest_mimic::{Arguments, Trial};

use crate::scene::PATIENCE;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("__git-gate") {
        return bottle_git_gate::run();
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    vec![
        trial("what_is_pushed_is_upstream_and_what_is_upstream_is_fetched", pushes::whole_way),
        trial("an_upstream_with_longer_names", pushes::longer_names),
        trial("several_refs_are_all_or_none", pushes::all_or_none),
        trial("no_key_is_on_disk_or_on_a_command_line", pushes::nowhere),
        trial("nothing_that_may_not_leave_leaves", secrets::attacks),
        trial("files_are_judged_by_every_name_they_have", secrets::named),
        trial("messages_and_names_in_other_forms", secrets::forms),
        trial("hidden_objects_are_refused", secrets::hidden),
        trial("what_receive_pack_keeps_for_who_pushes_is_read_too", secrets::planted),
        trial("a_large_file_is_read_to_its_end_in_little_memory", secrets::large),
        trial("refs_that_may_not_move_stay", moves::refs),
        trial("a_branch_that_may_be_another_one_stays", moves::disguised),
        trial("a_branch_called_head_and_a_head_that_leads_nowhere", moves::heads),
        trial("a_hundred_thousand_refs_are_refused_soon", moves::many),
        trial("bodies_that_are_no_push_change_nothing", protocol::bodies),
        trial("a_delta_that_becomes_too_much_is_refused", protocol::delta),
        trial("thousands_of_shallow_lines_take_no_time", protocol::shallow),
        trial("addresses_that_are_none", protocol::addresses),
        trial("an_address_runs_nothing", protocol::injected),
        trial("half_a_client_stops_nobody", ends::half),
        trial("a_gate_full_of_half_clients_has_room_soon", ends::full),
        trial("two_pushes_race_and_one_wins", ends::race),
        trial("a_client_that_is_killed_pushes_nothing", ends::client),
        trial("a_gate_that_is_killed_heals", ends::gate),
        trial("an_upstream_that_hangs_is_not_waited_for", ends::upstream),
        trial("a_connection_is_kept_and_ends_with_the_gate", ends::line),
        trial("what_is_wrong_upstream_is_a_sentence", wrong::upstream),
        trial("upstreams_own_refusal_reaches_the_agent_and_leaves_nothing", wrong::refused),
        trial("what_is_wrong_with_a_push_is_a_sentence", wrong::push),
        trial("a_full_disk_is_a_sentence", wrong::full),
        trial("a_user_decides_once_and_the_retry_passes", people::asked),
        trial("what_a_user_let_pass_lets_nothing_else_pass", people::beside),
        trial("a_walk_locks_the_gate_and_its_verdicts_say_nothing_more", lock_out::walked),
        trial("guesses_at_a_credential_pass_alike", lock_out::guesses),
        trial("a_verdict_says_the_same_however_much_of_a_secret_matches", lock_out::verdicts),
        trial("what_another_daemon_says_locks_pushes_and_fetches", lock_out::told),
        trial("no_spelling_of_its_address_pushes_unread", protocol::spellings),
        trial("started_by_root_it_outlives_a_new_passwd", within::replaced),
        trial("as_any_user_it_outlives_a_new_passwd", within::replaced_for_a_user),
        trial("submodules_go_through_the_gate", clients::submodules),
        trial("libgit2_goes_through_the_gate", clients::libgit2),
        trial("an_upstream_over_https_takes_a_token", clients::https),
    ]
}

fn trial<F: Future<Output = Result<()>> + 'static>(name: &str, test: fn() -> F) -> Trial {
    let there = Sshd::missing().is_none();
    let trial = Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let outcome = runtime.block_on(async { tokio::time::timeout(5 * PATIENCE, test()).await });
        outcome.context("the test took too long").and_then(|done| done).map_err(|e| format!("{e:?}").into())
    });
    trial.with_ignored_flag(!there).with_kind(if there { "" } else { "needs an OpenSSH server" })
}
