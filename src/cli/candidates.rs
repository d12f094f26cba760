//! The names that a shell completes: agents, bottle manifests, bottles, tasks and proposals.

use bottle_host::Host;
use bottle_instance::environments::Environments;
use bottle_instance::{State, Store};
use bottle_manifest::Kind;
use clap_complete::{ArgValueCandidates, CompletionCandidate};

use super::choice;

/// Completes names of agents, and shows where each manifest comes from.
pub(crate) fn agents() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(&[Kind::Agent]))
}

/// Completes names of bottle manifests.
pub(crate) fn bottles() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(&[Kind::Bottle]))
}

/// Completes names of agents and bottle manifests.
pub(crate) fn manifests() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(&[Kind::Agent, Kind::Bottle]))
}

/// Completes slugs of running bottles.
pub(crate) fn running() -> ArgValueCandidates {
    ArgValueCandidates::new(|| slugs(bottle_lib::bottles::is_running))
}

/// Completes slugs of bottles whose files a command can use.
pub(crate) fn with_files() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let kept = |state: &State| matches!(state, State::Kept(record) if record.kept);
        slugs(|state| bottle_lib::bottles::is_running(state) || kept(state))
    })
}

/// Completes slugs of kept bottles.
pub(crate) fn kept() -> ArgValueCandidates {
    ArgValueCandidates::new(|| slugs(|state| matches!(state, State::Kept(_))))
}

/// Completes slugs of all bottles.
pub(crate) fn all_bottles() -> ArgValueCandidates {
    ArgValueCandidates::new(|| slugs(|_| true))
}

/// Completes ids of tasks that have a bottle.
pub(crate) fn tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Ok(host) = Host::of_this_process() else { return Vec::new() };
        let all = Environments::of(&host).and_then(|environments| environments.list()).unwrap_or_default();
        all.into_iter()
            .map(|found| CompletionCandidate::new(found.task).help(Some(found.slug.to_string().into())))
            .collect()
    })
}

/// Completes ids of pending proposals.
pub(crate) fn proposals() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Ok(host) = Host::of_this_process() else { return Vec::new() };
        let listing = bottle_queue::list(&host.home, jiff::Timestamp::now()).unwrap_or_default();
        let candidate = |pending: bottle_queue::Pending| {
            let help = format!("{} of {}", pending.proposal.tool.name(), pending.proposal.bottle_slug);
            CompletionCandidate::new(pending.proposal.id.to_string()).help(Some(help.into()))
        };
        listing.pending.into_iter().map(candidate).collect()
    })
}

fn named(kinds: &[Kind]) -> Vec<CompletionCandidate> {
    let Ok(host) = Host::of_this_process() else { return Vec::new() };
    let all = choice::manifests(&host);
    let entries =
        kinds.iter().flat_map(|kind| all.list(*kind).entries.into_iter().map(move |entry| (kind, entry)));
    let candidate = |(kind, entry): (&Kind, bottle_manifest::Entry)| {
        CompletionCandidate::new(entry.name.to_string())
            .help(Some(format!("{kind}, {}", entry.source.place.word()).into()))
    };
    entries.map(candidate).collect()
}

fn slugs(wanted: impl Fn(&State) -> bool) -> Vec<CompletionCandidate> {
    let Ok(host) = Host::of_this_process() else { return Vec::new() };
    let listed = Store::of(&host).list().unwrap_or_default();
    let candidate = |listed: bottle_instance::Listed| CompletionCandidate::new(listed.slug.to_string());
    listed.into_iter().filter(|listed| wanted(&listed.state)).map(candidate).collect()
}
