//! Decides what is kept of a bottle that ended, and why. This module is pure: it reads no clock, sends no messages and
//! uses no files.

use std::time::Duration;

use bottle_backend::{LAYERS, Resource};
use bottle_instance::record::KeptFor;
use bottle_instance::work::Unsaved;
use bottle_protocol::session::guest::Exit;

use crate::protocol::{EndCause, EndChoice, Resumable};

/// Why and how the bottle ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) cause: EndCause,
    pub(crate) exit: Option<Exit>,
    pub(crate) grace: Duration,
    /// Whether a client was attached at any time.
    pub(crate) attached: bool,
    /// The user's decision about unsaved work.
    pub(crate) choice: EndChoice,
}

/// The state of a bottle at its end.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The unsaved work that would be lost with the bottle's files.
    pub(super) unsaved: Unsaved,
    /// Whether something other than `bottle` removed the bottle's files.
    pub(super) lost: bool,
    /// Whether the bottle is the environment of a task.
    pub(super) is_task: bool,
    pub(super) conversation: Talked,
    /// Whether the bottle has a snapshot.
    pub(super) snapshot: bool,
    /// Whether the bottle was started with `--learn`, so that the user needs its access log.
    pub(super) learn: bool,
}

/// Whether an agent had conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Talked {
    No,
    /// The conversations were copied out of the bottle.
    Copied,
    /// The conversations could not be copied. If there are any, they exist only in the bottle.
    Unknown,
}

/// What is kept of a bottle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keeping {
    /// Why the bottle's files or conversation are kept. `None` if neither is kept.
    pub(super) why: Option<KeptFor>,
    /// The files or conversation from which the bottle can be resumed. `None` if it cannot be resumed.
    pub(super) resumable: Option<Resumable>,
    /// Whether the bottle's directory is kept for its logs even if the bottle cannot be resumed.
    logs: bool,
}

/// The decision about a bottle's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Directory {
    /// The directory is kept, because the bottle can be resumed.
    Kept,
    /// The bottle cannot be resumed. The directory stays for its logs or for a cleanup.
    Ended,
    /// The directory is removed.
    Removed,
}

impl Keeping {
    /// Decides what is kept of a bottle. `exit` is the agent's exit, if it is known.
    pub(super) fn of(end: &End, exit: Option<Exit>, found: Found) -> Self {
        let failed = exit != Some(Exit::Code(0));
        let by_itself = matches!(end.cause, EndCause::AgentExited | EndCause::GuestDied);
        let logs = !end.attached || (failed && end.cause == EndCause::AgentExited) || found.learn;
        let snapshot = found.snapshot;
        let why = kept_for(end.choice, failed && by_itself, found);
        let resumable = match &why {
            Some(KeptFor::Unsaved(_) | KeptFor::Failure | KeptFor::Task) => Some(Resumable::Kept),
            _ if snapshot => Some(Resumable::Snapshot),
            Some(KeptFor::Conversation) => Some(Resumable::Conversation),
            None => None,
        };
        Self { why, resumable, logs }
    }

    /// Whether the bottle's files are kept.
    pub(super) fn files(&self) -> bool {
        self.resumable == Some(Resumable::Kept)
    }

    /// Whether this resource of the bottle is kept, because it contains the bottle's files.
    pub(super) fn keeps(&self, resource: &Resource) -> bool {
        self.files() && resource.kind == LAYERS
    }

    /// Returns the decision about the directory. `cleared` is set if all other resources of the bottle are removed.
    pub(super) fn directory(&self, cleared: bool) -> Directory {
        match (self.resumable, self.logs, cleared) {
            (Some(_), ..) => Directory::Kept,
            (None, true, _) | (None, false, false) => Directory::Ended,
            (None, false, true) => Directory::Removed,
        }
    }
}

/// Returns why a bottle's files or conversation are kept, or `None` if neither is kept. `failed` is set if the agent
/// failed by itself and was not stopped.
fn kept_for(choice: EndChoice, failed: bool, found: Found) -> Option<KeptFor> {
    let Found { unsaved, lost, is_task, conversation, .. } = found;
    match (choice, conversation) {
        (EndChoice::Discard, _) => None,
        (EndChoice::Keep, Talked::Copied) if lost => Some(KeptFor::Conversation),
        (EndChoice::Keep, _) if lost => None,
        (EndChoice::Keep, _) if unsaved.is_any() => Some(KeptFor::Unsaved(unsaved)),
        (EndChoice::Keep, _) if is_task => Some(KeptFor::Task),
        (EndChoice::Keep, Talked::Copied | Talked::Unknown) if failed => Some(KeptFor::Failure),
        (EndChoice::Keep, Talked::Unknown) => Some(KeptFor::Unsaved(Unsaved {
            unknown: Some("its conversation could not be copied".to_owned()),
            ..Unsaved::default()
        })),
        (EndChoice::Keep, Talked::Copied) => Some(KeptFor::Conversation),
        (EndChoice::Keep, Talked::No) => None,
    }
}

#[cfg(test)]
mod tests {
    use bottle_host::budget::OnSpent;
    use proptest::prelude::*;

    use super::*;

    fn end(cause: EndCause) -> End {
        End { cause, exit: None, grace: Duration::ZERO, attached: true, choice: EndChoice::Keep }
    }

    fn found(conversation: Talked) -> Found {
        Found {
            unsaved: Unsaved::default(),
            lost: false,
            is_task: false,
            conversation,
            snapshot: false,
            learn: false,
        }
    }

    #[test]
    fn what_is_kept_has_a_reason() {
        let nothing = Unsaved::default;
        let ignored = || Unsaved { ignored: 1, ..Unsaved::default() };
        let (no, yes, unknown) = (Talked::No, Talked::Copied, Talked::Unknown);
        let with = |unsaved, conversation| Found { unsaved, ..found(conversation) };
        let task = |unsaved| Found { is_task: true, ..with(unsaved, yes) };
        let lost = |conversation| Found { lost: true, is_task: true, ..found(conversation) };
        let conversation = Some(KeptFor::Conversation);
        let unsaved = |what| Some(KeptFor::Unsaved(what));
        for (failed, found, wanted) in [
            (false, with(nothing(), no), None),
            (true, with(nothing(), no), None),
            (false, with(nothing(), yes), conversation.clone()),
            (true, with(nothing(), yes), Some(KeptFor::Failure)),
            (true, with(nothing(), unknown), Some(KeptFor::Failure)),
            (false, task(nothing()), Some(KeptFor::Task)),
            (false, task(Unsaved::work()), unsaved(Unsaved::work())),
            (true, with(Unsaved::work(), yes), unsaved(Unsaved::work())),
            (false, with(ignored(), no), unsaved(ignored())),
            (false, lost(no), None),
            (false, lost(yes), conversation),
        ] {
            assert_eq!(kept_for(EndChoice::Keep, failed, found.clone()), wanted, "{failed} {found:?}");
            assert_eq!(kept_for(EndChoice::Discard, failed, found.clone()), None, "{found:?}");
        }
        // A conversation that could not be copied exists only in the bottle's files, so the files are kept.
        let kept = kept_for(EndChoice::Keep, false, found(unknown));
        assert!(matches!(kept, Some(KeptFor::Unsaved(Unsaved { unknown: Some(_), .. }))), "{kept:?}");
    }

    #[test]
    fn only_an_agent_that_ends_by_itself_has_failed() {
        let (ok, failed, killed) = (Some(Exit::Code(0)), Some(Exit::Code(1)), None);
        for (cause, exit, wanted) in [
            (EndCause::AgentExited, ok, KeptFor::Conversation),
            (EndCause::AgentExited, failed, KeptFor::Failure),
            (EndCause::GuestDied, killed, KeptFor::Failure),
            (EndCause::Stopped, failed, KeptFor::Conversation),
            (EndCause::ClientGone, failed, KeptFor::Conversation),
            (EndCause::Budget(OnSpent::Freeze), killed, KeptFor::Conversation),
        ] {
            let keeping = Keeping::of(&end(cause), exit, found(Talked::Copied));
            assert_eq!(keeping.why, Some(wanted), "{cause:?} {exit:?}");
        }
    }

    #[test]
    fn a_bottle_is_resumed_from_the_most_that_is_kept() {
        let work = Found { unsaved: Unsaved::work(), ..found(Talked::Copied) };
        let with_snapshot = |found| Found { snapshot: true, ..found };
        for (found, wanted) in [
            (found(Talked::No), None),
            (found(Talked::Copied), Some(Resumable::Conversation)),
            (with_snapshot(found(Talked::No)), Some(Resumable::Snapshot)),
            (with_snapshot(found(Talked::Copied)), Some(Resumable::Snapshot)),
            (work.clone(), Some(Resumable::Kept)),
            (with_snapshot(work), Some(Resumable::Kept)),
        ] {
            let keeping = Keeping::of(&end(EndCause::Stopped), None, found.clone());
            assert_eq!(keeping.resumable, wanted, "{found:?}");
            let discarded = End { choice: EndChoice::Discard, ..end(EndCause::Stopped) };
            let keeping = Keeping::of(&discarded, None, found.clone());
            // The user discards the work, but not a snapshot.
            assert_eq!(keeping.resumable, found.snapshot.then_some(Resumable::Snapshot), "{found:?}");
        }
    }

    #[test]
    fn a_directory_stays_for_what_is_in_it() {
        let (attached, detached) =
            (end(EndCause::Stopped), End { attached: false, ..end(EndCause::Stopped) });
        let (ok, failed) = (Some(Exit::Code(0)), Some(Exit::Code(1)));
        let exited = end(EndCause::AgentExited);
        let learns = Found { learn: true, ..found(Talked::No) };
        let (kept, ended, removed) = (Directory::Kept, Directory::Ended, Directory::Removed);
        for (end, exit, found, cleared, uncleared) in [
            (attached, failed, found(Talked::No), removed, ended),
            (detached, ok, found(Talked::No), ended, ended),
            (exited, ok, found(Talked::No), removed, ended),
            (exited, failed, found(Talked::No), ended, ended),
            (attached, ok, learns, ended, ended),
            (attached, ok, found(Talked::Copied), kept, kept),
        ] {
            let keeping = Keeping::of(&end, exit, found.clone());
            assert_eq!(keeping.directory(true), cleared, "{end:?} {exit:?} {found:?}");
            assert_eq!(keeping.directory(false), uncleared, "{end:?} {exit:?} {found:?}");
        }
    }

    proptest! {
        /// Unsaved work is removed only if the user discards it. Work that is already lost cannot be kept.
        #[test]
        fn unsaved_work_is_kept(
            lost: bool, is_task: bool, snapshot: bool, learn: bool, attached: bool, discards: bool, code: u8, talked in 0_usize..3,
        ) {
            let conversation = [Talked::No, Talked::Copied, Talked::Unknown][talked];
            let found = Found { unsaved: Unsaved::work(), lost, is_task, conversation, snapshot, learn };
            let choice = if discards { EndChoice::Discard } else { EndChoice::Keep };
            for cause in [EndCause::AgentExited, EndCause::GuestDied, EndCause::Stopped, EndCause::ClientGone] {
                let end = End { attached, choice, ..end(cause) };
                let keeping = Keeping::of(&end, Some(Exit::Code(code)), found.clone());
                prop_assert_eq!(keeping.files(), !discards && !lost);
                let of = |kind: &str| Resource { kind: kind.to_owned(), slug: "one".parse().expect("a slug"), id: "1".to_owned() };
                let (layers, network) = (of(LAYERS), of("network"));
                prop_assert_eq!(keeping.keeps(&layers), keeping.files());
                prop_assert!(!keeping.keeps(&network));
            }
        }
    }
}
