//! Reports how a bottle ended.

use bottle_host::budget::OnSpent;
use bottle_host::byte_size::ByteSize;
use bottle_instance::record::KeptFor;
use bottle_keeper::protocol::{EndCause, Ended, Resumable};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Limited, Overrun};

use super::kept_reason;
use super::live;
use crate::console::output::{Output, counted};

/// Reports why a bottle ended.
pub(crate) fn report_end(slug: &Slug, ended: &Ended, output: &Output) {
    match ended.cause {
        EndCause::AgentExited => {}
        EndCause::Budget(OnSpent::Kill) => output.note(format!("{slug} was killed")),
        EndCause::Budget(_) => output.note(format!("{slug} was frozen")),
        EndCause::Stopped => output.note(format!("{slug} was stopped")),
        EndCause::ClientGone => output.note(format!("{slug} ended with the client that started it")),
        EndCause::GuestDied => output.note(format!("{slug} failed: its first process died")),
    }
    if let Some(overrun) = &ended.overrun {
        output.note(describe_overrun(slug, overrun));
    }
    if ended.lost {
        output.note("its files are lost: something else than bottle removed them");
    }
    match &ended.live {
        Some(live) => {
            let has_commits = matches!(&ended.kept_for, Some(KeptFor::Unsaved(_)));
            live::report(slug, live, has_commits, output);
        }
        // Does not print the path of the kept files. Their git directory refers to objects by a path in the bottle, so
        // git does not work in this directory on the host.
        None => kept_reason::lines(slug, ended).into_iter().for_each(|line| output.note(line)),
    }
    if let Some(path) = &ended.transcript {
        output.note(format!("its conversations are in {path}"));
    }
    if let Some(hosts) = ended.learned.filter(|hosts| *hosts > 0) {
        let hosts = counted(hosts, "host");
        output.note(format!(
            "requests to {hosts} were denied: `bottle learn {slug}` shows routes that would allow them"
        ));
    }
    if let Some(head) = &ended.audit {
        output.note(format!("its audit log ends at {head}"));
    }
    match ended.resumable {
        Some(Resumable::Kept) => output.note(format!("`bottle resume {slug}` starts it again")),
        Some(Resumable::Snapshot) => output.note(format!("`bottle resume {slug}` starts from its snapshot")),
        Some(Resumable::Conversation) => output.note(format!("`bottle resume {slug}` continues it")),
        None => {}
    }
    for left in &ended.left {
        output.note(format!("not removed: {left}; `bottle cleanup` tries again"));
    }
}

/// Describes the exceeded limit that ended a bottle, and names the manifest key that changes the limit.
fn describe_overrun(slug: &Slug, overrun: &Overrun) -> String {
    let (limit, mib) = (ByteSize(overrun.limit), overrun.limit >> 20);
    match (overrun.resource, overrun.asked) {
        (Limited::Memory, true) => format!("{slug} used up its memory, {limit} (`resources.memory`)"),
        (Limited::Memory, false) => format!(
            "{slug} used more than {mib}MiB, three quarters of this machine's memory, and was ended; \
             `resources.memory` sets another limit"
        ),
        (Limited::Disk, _) => format!("{slug} used up its disk, {limit} (`resources.disk`), and was ended"),
        (Limited::FreeDisk, _) => format!(
            "less than {mib}MiB of the disk were left and {slug} took more than that, so it was ended; \
             `resources.disk` sets a limit of its own"
        ),
    }
}
