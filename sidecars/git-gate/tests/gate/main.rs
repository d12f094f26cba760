//! Tests the gate as a separate process, between real git clients and a real OpenSSH server.
//!
//! If the first argument is `__git-gate`, this program runs as the daemon. Otherwise, it runs the tests. If no OpenSSH
//! server is installed, it reports all tests as skipped.
//!
//! ```text
//! pushes           pushes and fetches
//! secrets          secrets at every location in a push
//! ref_rules        ref rules, and the limit on the number of refs
//! protocol         malformed packs, bodies and requests
//! interruptions    clients, gates and upstreams that stop halfway
//! messages         errors and their messages
//! approval         approval of findings by the user
//! lock_out         guesses at credentials
//! logs             the contents of the log at every level
//! mount_namespace  a gate that root starts, in its private mount namespace
//! clients          clients other than git, and an upstream over https
//! upstreams        features, refs and histories of different upstreams
//! workflows        everyday workflows, compared with plain git
//! scene            the test fixture
//! ```

mod approval;
mod clients;
mod interruptions;
mod lock_out;
mod logs;
mod messages;
mod mount_namespace;
mod protocol;
mod pushes;
mod ref_rules;
mod scene;
mod secrets;
mod upstreams;
mod workflows;

use std::process::ExitCode;

use anyhow::{Context, Result};
use bottle_test_support::sshd::Sshd;
use libtest_mimic::{Arguments, Trial};

use crate::scene::PATIENCE;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("__git-gate") {
        logs::start_if_asked();
        return bottle_git_gate::run();
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    vec![
        trial("forwards_pushes_and_fetches", pushes::round_trip),
        trial("supports_sha256_repositories", pushes::sha256),
        trial("pushes_several_refs_atomically", pushes::atomic),
        trial("keeps_the_key_off_disk_and_command_lines", pushes::key_is_hidden),
        trial("blocks_secrets_in_every_location", secrets::locations),
        trial("checks_every_name_of_a_file", secrets::file_names),
        trial("judges_every_path_that_a_push_adds", secrets::paths),
        trial("scans_packed_parts_of_commits", secrets::packed),
        trial("scans_tags_and_names_in_other_encodings", secrets::encodings),
        trial("refuses_unreachable_objects", secrets::unreachable),
        trial("scans_loose_objects_of_the_mirror", secrets::loose),
        trial("scans_a_large_file_in_little_memory", secrets::large),
        trial("refuses_updates_of_denied_refs", ref_rules::refs),
        trial("refuses_a_possible_alias_of_a_denied_branch", ref_rules::aliases),
        trial("refuses_a_branch_named_head_and_handles_a_dangling_head", ref_rules::heads),
        trial("refuses_a_hundred_thousand_refs_quickly", ref_rules::many),
        trial("ignores_bodies_that_are_not_a_push", protocol::bodies),
        trial("refuses_a_delta_bomb", protocol::delta),
        trial("limits_the_memory_of_concurrent_pushes", protocol::memory),
        trial("handles_thousands_of_shallow_lines_quickly", protocol::shallow),
        trial("refuses_unknown_endpoints", protocol::endpoints),
        trial("runs_no_command_from_an_upstream_url", protocol::injection),
        trial("serves_others_while_clients_stop_halfway", interruptions::half),
        trial("frees_permits_that_stalled_clients_hold", interruptions::full),
        trial("lets_one_of_two_racing_pushes_win", interruptions::race),
        trial("pushes_nothing_for_a_killed_client", interruptions::client),
        trial("recovers_after_the_gate_is_killed", interruptions::gate),
        trial("stops_waiting_for_a_hanging_upstream", interruptions::upstream),
        trial("shares_a_connection_that_ends_with_the_gate", interruptions::connection),
        trial("reports_errors_of_the_upstream", messages::upstream),
        trial("passes_on_a_refusal_of_the_upstream", messages::refused),
        trial("shows_the_reason_of_the_upstream_for_each_ref", messages::reasons),
        trial("reports_errors_of_a_push", messages::push),
        trial("reports_a_full_disk", messages::full),
        trial("requests_approval_once_for_a_finding", approval::decided),
        trial("an_approval_covers_only_its_findings", approval::scope),
        trial("locks_after_guesses_and_reveals_nothing_more", lock_out::locked),
        trial("counts_guesses_beyond_the_limit_of_findings", lock_out::beyond_the_limit),
        trial("counts_all_pieces_in_a_compressed_file", lock_out::packed),
        trial("passes_right_and_wrong_guesses_alike", lock_out::guesses),
        trial("gives_one_verdict_for_any_part_of_a_secret", lock_out::verdicts),
        trial("a_lock_by_another_daemon_blocks_pushes_and_fetches", lock_out::notified),
        trial("scans_pushes_to_every_spelling_of_the_endpoint", protocol::spellings),
        trial("survives_a_new_passwd_when_root_starts_it", mount_namespace::as_root),
        trial("survives_a_new_passwd_as_any_user", mount_namespace::as_user),
        trial("logs_spans_and_no_secret_at_any_level", logs::levels),
        trial("pushes_patch_sets_to_gerrit", upstreams::gerrit),
        trial("mirrors_exactly_the_refs_of_the_upstream", upstreams::follows),
        trial("reports_each_ref_of_an_upstream_without_atomic_pushes", upstreams::not_atomic),
        trial("forwards_push_options", upstreams::options),
        trial("fetches_pull_requests", upstreams::pull_requests),
        trial("clones_a_shallow_upstream", upstreams::shallow),
        trial("refuses_to_push_ref_names_that_are_not_utf8", upstreams::not_utf8),
        trial("clones_forty_thousand_refs", upstreams::many_refs),
        trial("fetches_thousands_of_commits_by_patterns", upstreams::patterns),
        trial("names_the_new_address_of_an_upstream", upstreams::moved),
        trial("fetches_as_plain_git_does", workflows::fetches),
        trial("pushes_as_plain_git_does", workflows::pushes),
        trial("changes_history_as_plain_git_does", workflows::history),
        trial("documents_how_many_workflows_differ", workflows::counts),
        trial("serves_the_url_that_git_shows", clients::shown_url),
        trial("supports_submodules", clients::submodules),
        trial("supports_libgit2", clients::libgit2),
        trial("sends_a_token_to_an_https_upstream", clients::https),
    ]
}

fn trial<F: Future<Output = Result<()>> + 'static>(name: &str, test: fn() -> F) -> Trial {
    let has_sshd = Sshd::missing().is_none();
    let trial = Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let outcome = runtime.block_on(async { tokio::time::timeout(5 * PATIENCE, test()).await });
        outcome.context("the test took too long").and_then(|done| done).map_err(|e| format!("{e:?}").into())
    });
    trial.with_ignored_flag(!has_sshd).with_kind(if has_sshd { "" } else { "needs an OpenSSH server" })
}
